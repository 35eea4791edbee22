"""TLS between client, router and replica: who is let in."""

import asyncio
import gc
import re
import ssl
from pathlib import Path

import grpc
import pytest
from grpc import aio

from proto.credentials import IN_CLEAR, Credentials
from proto.listening import CHECK_PERIOD_S
from router.cli import main as prefixlb
from router.cli.fleet_view import view_fleet
from tests.authority import EXPIRED, Authority, answers, server_credentials, tls_settings
from tests.fake_replica import FakeReplica, Script, replicas
from tests.http2 import BEGIN, call_of, connected
from tests.live_router import LiveRouter, live_router, until
from tests.replica_rig import replica_rig

pytestmark = pytest.mark.redis


def turned_away(router: LiveRouter) -> dict[str, int]:
    return {reason: times for reason, times, _ in router.parts.plane.turned_away()}


# Clients and router


async def test_a_port_with_tls_serves_nobody_in_clear(redis_url: str, authority: Authority) -> None:
    r0 = FakeReplica("r0", redis_url)
    mine = authority.credentials()
    settings = tls_settings(authority.issue("router"))
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        port = router.running.port
        assert await answers(port, mine)
        assert not await answers(port, IN_CLEAR)
        async with connected(port, BEGIN) as connection, asyncio.timeout(5):
            assert not await connection.kinds()
        assert turned_away(router)["not_tls"] >= 2
        assert len(r0.served) == 1


async def test_client_and_router_turn_away_whom_they_do_not_trust(
    redis_url: str, authority: Authority, other: Authority
) -> None:
    r0 = FakeReplica("r0", redis_url)
    mine = authority.credentials(authority.issue("client", "client"))
    settings = tls_settings(authority.issue("router"), client_ca=authority.ca)
    stranger, late = other.issue("stranger", "x"), authority.issue("late", "x", expires=EXPIRED)
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        for reason, credentials in (
            ("left_handshake", other.credentials(stranger)),
            ("no_certificate", authority.credentials()),
            ("bad_certificate", Credentials(authority.ca, stranger.cert, stranger.key)),
        ):
            assert not await answers(router.running.port, credentials), reason
            await until(lambda reason=reason: turned_away(router).get(reason, 0) > 0, 2.0, reason)
        before = turned_away(router)["bad_certificate"]
        # A client of ours would not show an expired one; others do.
        expired = grpc.ssl_channel_credentials(
            *(path.read_bytes() for path in (authority.ca, late.key, late.cert))
        )
        async with aio.secure_channel(f"127.0.0.1:{router.running.port}", expired) as channel:
            with pytest.raises(aio.AioRpcError):
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert turned_away(router)["bad_certificate"] > before
        assert await answers(router.running.port, mine)
        assert 'prefixlb_router_clients_turned_away_total{reason="no_certificate"}' in (
            await router.metrics()
        )


async def test_a_certificate_of_another_name_is_refused_unless_that_is_expected(
    redis_url: str, authority: Authority
) -> None:
    r0 = FakeReplica("r0", redis_url)
    named = authority.credentials(tls_server_name="router.lb.svc")
    settings = tls_settings(authority.issue("router", "router.lb.svc"))
    async with replicas(r0), live_router(redis_url, credentials=named, **settings) as router:
        await router.synced(r0)
        assert not await answers(router.running.port, authority.credentials())
        assert await answers(router.running.port, named)


async def test_who_does_not_want_to_speak_http2_is_turned_away(
    redis_url: str, authority: Authority
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    async with live_router(
        redis_url, credentials=authority.credentials(), **tls_settings(authority.issue("router"))
    ) as router:
        port = router.running.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        context.set_alpn_protocols(["http/1.1"])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await until(lambda: turned_away(router) == {"no_http2": 2})
        assert await router.serving("liveness")


@pytest.mark.slow
async def test_a_handshake_that_does_not_go_on_ends(redis_url: str, authority: Authority) -> None:
    async with live_router(
        redis_url, credentials=authority.credentials(), **tls_settings(authority.issue("router"))
    ) as router:
        async with connected(router.running.port, b"\x16\x03\x01") as connection:
            async with asyncio.timeout(15):
                assert not [frame async for frame in connection.frames()]
        # The client sees its connection end a moment before that is counted.
        await until(lambda: turned_away(router) == {"slow_handshake": 1})


async def test_large_messages_and_many_streams_pass_over_tls(
    redis_url: str, authority: Authority
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=20, text="{}" + "ü" * 20_000, store=False)
    mine = authority.credentials()
    settings = tls_settings(authority.issue("router"))
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        prompt = list(range(100_000))
        answered = await asyncio.gather(
            *(router.generate([number, *prompt], timeout_s=60) for number in range(16))
        )
        for answer in answered:
            assert answer.code is grpc.StatusCode.OK, answer.details
            texts = [message.text for message in answer.messages[:-1]]
            assert texts == [f"{number}" + "ü" * 20_000 for number in range(20)]
        assert [len(each.request.tokens.ids) for each in r0.served] == [100_001] * 16


# Router and replicas


async def test_replicas_are_reached_over_tls_and_are_shown_a_certificate(
    redis_url: str, authority: Authority
) -> None:
    r0 = FakeReplica(
        "r0", redis_url, credentials=server_credentials(authority.issue("r0"), authority.ca)
    )
    own = authority.issue("router", "router")
    async with (
        replicas(r0),
        live_router(
            redis_url,
            replica_tls_ca=authority.ca,
            replica_tls_cert=own.cert,
            replica_tls_key=own.key,
        ) as router,
    ):
        await router.synced(r0)
        assert (await router.generate([1, 2, 3])).code is grpc.StatusCode.OK


async def test_status_asks_replicas_over_tls_as_it_asks_the_router(
    redis_url: str, authority: Authority
) -> None:
    r0 = FakeReplica(
        "r0", redis_url, credentials=server_credentials(authority.issue("r0"), authority.ca)
    )
    pair = authority.issue("router", "router.lb.svc")
    mine = authority.credentials(pair, tls_server_name="router.lb.svc")
    settings = {
        **tls_settings(pair, authority.ca),
        **{"replica_tls_ca": authority.ca, "replica_tls_cert": pair.cert},
        "replica_tls_key": pair.key,
    }
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        address = f"127.0.0.1:{router.running.port}"
        (view,) = await asyncio.to_thread(view_fleet, address, mine)
        assert view.info is not None and view.mirror.startswith("streaming")


@pytest.mark.parametrize("why", ["authority", "name", "client", "clear", "tls"])
async def test_a_replica_that_is_not_trusted_or_does_not_trust_gets_no_request(
    redis_url: str, authority: Authority, other: Authority, why: str
) -> None:
    credentials = {
        "authority": lambda: server_credentials(other.issue("r0")),
        "name": lambda: server_credentials(authority.issue("r0", "replica.lb.svc")),
        "client": lambda: server_credentials(authority.issue("r0"), authority.ca),
        "clear": lambda: None,
        "tls": lambda: server_credentials(authority.issue("r0")),
    }[why]()
    r0 = FakeReplica("r0", redis_url, credentials=credentials)
    settings = {} if why == "tls" else {"replica_tls_ca": authority.ca}
    async with replicas(r0), live_router(redis_url, **settings) as router:
        await until(lambda: "r0" in router.parts.fleet.members)
        answer = await router.generate([1, 2, 3], timeout_s=5)
        assert answer.code is grpc.StatusCode.UNAVAILABLE, answer.details
        assert answer.details.startswith("tried r0: replica r0 failed: ")
        assert "https://" not in answer.details
        assert not r0.served and not r0.snapshots


async def test_one_name_for_all_replicas_replaces_that_of_the_address(
    redis_url: str, authority: Authority
) -> None:
    pair = authority.issue("r0", "replica.lb.svc")
    r0 = FakeReplica("r0", redis_url, credentials=server_credentials(pair))
    settings = {"replica_tls_ca": authority.ca, "replica_tls_server_name": "replica.lb.svc"}
    async with replicas(r0), live_router(redis_url, **settings) as router:
        await router.synced(r0)
        assert (await router.generate([1, 2, 3])).code is grpc.StatusCode.OK


# People


async def test_a_command_that_finds_no_replica_is_not_taken_for_a_stranger(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live_router(redis_url) as router:
        command = ["generate", "hi", "--router", f"127.0.0.1:{router.running.port}"]
        assert await asyncio.to_thread(prefixlb, command) == 1
        assert "no replica" in capsys.readouterr().err
        await asyncio.sleep(0.2)  # what is wrong with a client is counted when it has gone
        assert turned_away(router) == {}


async def test_the_command_says_in_words_what_is_wrong_with_tls(
    redis_url: str, authority: Authority, other: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    client, stranger = authority.issue("client", "c"), other.issue("stranger", "s")
    mine = authority.credentials(client)
    settings = tls_settings(authority.issue("router", "127.0.0.1"), client_ca=authority.ca)

    async def said(router: LiveRouter, *flags: str | Path) -> str:
        address = f"127.0.0.1:{router.running.port}"
        command = ["status", "--router", address, *map(str, flags)]
        code = await asyncio.to_thread(prefixlb, command)
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    trusting = ("--tls-ca", authority.ca)
    good = (*trusting, "--tls-cert", client.cert, "--tls-key", client.key)
    async with live_router(redis_url, credentials=mine, **settings) as router:
        for flags, words in (
            ((), "wants TLS: name its authority with --tls-ca"),
            (("--tls-ca", other.ca), "no authority in .*other.pem vouches for it"),
            (trusting, "wants a certificate of the client"),
            ((*trusting, "--tls-cert", client.cert), "--tls-cert and --tls-key need each other"),
            (
                (*trusting, "--tls-cert", stranger.cert, "--tls-key", stranger.key),
                "does not take the certificate in .*stranger.pem",
            ),
            ((*good, "--tls-server-name", "elsewhere"), "is another name's"),
            (good, "no replica is in the fleet"),
        ):
            told = await said(router, *flags)
            assert re.search(words, told), told
    async with live_router(redis_url) as router:
        assert "does not speak TLS: leave out --tls-ca" in await said(router, *trusting)


# Replicas


async def test_a_replica_serves_only_whom_it_was_told_to_trust(
    authority: Authority, other: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = authority.credentials(authority.issue("router", "router"))
    strange = other.issue("stranger", "stranger")
    async with replica_rig(**tls_settings(authority.issue("r0"), client_ca=authority.ca)) as rig:
        port = rig.replica.port
        assert await answers(port, mine)
        for credentials in (
            IN_CLEAR,
            authority.credentials(),
            Credentials(authority.ca, strange.cert, strange.key),
        ):
            assert not await answers(port, credentials)
        gc.collect()  # gRPC's calls refer to themselves: a failed one's channel dials until then
        await asyncio.sleep(CHECK_PERIOD_S)
        capfd.readouterr()
        await asyncio.sleep(4 * CHECK_PERIOD_S)
        assert capfd.readouterr().err == ""  # that it listens is looked at without a word


async def test_a_replicas_port_that_died_is_served_over_tls_again(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    mine = authority.credentials()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    context.set_alpn_protocols(["h2"])
    async with replica_rig(**tls_settings(authority.issue("r0"))) as rig:
        port = rig.replica.port
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(BEGIN + call_of(b"/\xff\xfe/x"))  # ends gRPC's server
        await until(lambda: "listener died" in caplog.text)
        writer.close()
        async with asyncio.timeout(5):
            while not await answers(port, mine):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not await answers(port, IN_CLEAR)
