"""Bearer tokens at the router's door."""

import asyncio
import logging
import struct
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from grpc import aio

from proto.client import AsyncClient, Client
from proto.credentials import Credentials
from proto.errors import InvalidFile, Unauthenticated
from proto.prefixlb.v1 import admin_pb2
from proto.token_file import MAX_TOKENS, parse_tokens
from proto.watched_files import PERIOD_S
from router.cli import main as prefixlb
from router.turned_away import tell_of_turned_away
from tests.authority import Authority
from tests.fake_replica import FakeReplica, replicas
from tests.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, connected, frame, headers_of
from tests.live_router import LiveRouter, live_router
from tests.plane_process import GENERATE

pytestmark = pytest.mark.redis

CALLER, ADMIN, STRANGER = "caller-0123456789abcdef", "admin-0123456789abcdef", "stranger-0123456789"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

Metadata = Sequence[tuple[str, str]]


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def token_file(directory: Path, *tokens: str, name: str = "tokens") -> Path:
    path = directory / name
    path.touch(mode=0o600)
    path.write_text("# of the tests\n\n" + "".join(f"{token}\n" for token in tokens))
    return path


async def list_replicas(router: LiveRouter, metadata: Metadata) -> grpc.StatusCode:
    call = router.admin.ListReplicas(
        admin_pb2.ListReplicasRequest(), metadata=aio.Metadata(*metadata)
    )
    return await call.code()


async def reflect(router: LiveRouter, metadata: Metadata) -> grpc.StatusCode:
    """Names no service: the end of what is asked, and of the answer, comes at once."""
    call = router.channel.stream_unary(REFLECTION)(iter(()), metadata=aio.Metadata(*metadata))
    return await call.code()


async def test_calls_need_a_token_and_health_checks_do_not(redis_url: str, tmp_path: Path) -> None:
    r0 = FakeReplica("r0", redis_url)
    tokens = token_file(tmp_path, CALLER, ADMIN)
    async with replicas(r0), live_router(redis_url, auth_token_file=tokens) as router:
        await router.synced(r0)
        await router.ready()
        assert await router.serving("liveness")
        without = await router.generate([1, 2, 3])
        assert without.code is grpc.StatusCode.UNAUTHENTICATED
        assert "authorization: Bearer TOKEN" in without.details
        wrong = await router.generate([1, 2, 3], metadata=bearer(STRANGER))
        assert wrong.code is grpc.StatusCode.UNAUTHENTICATED
        assert wrong.details == "the token is none of this router's"
        for call in (list_replicas, reflect):
            assert await call(router, ()) is grpc.StatusCode.UNAUTHENTICATED
            assert await call(router, bearer(STRANGER)) is grpc.StatusCode.UNAUTHENTICATED
            assert await call(router, bearer(CALLER)) is grpc.StatusCode.OK
        assert not r0.served
        for token in (CALLER, ADMIN):
            assert (await router.generate([1], metadata=bearer(token))).code is grpc.StatusCode.OK
        page = await router.metrics()
        assert 'prefixlb_router_requests_total{code="UNAUTHENTICATED",model=""} 2.0' in page
        assert 'prefixlb_router_clients_turned_away_total{reason="no_token"} 3.0' in page
        assert 'prefixlb_router_clients_turned_away_total{reason="wrong_token"} 3.0' in page


async def test_the_admin_service_may_have_tokens_of_its_own(redis_url: str, tmp_path: Path) -> None:
    r0 = FakeReplica("r0", redis_url)
    settings = {
        "auth_token_file": token_file(tmp_path, CALLER),
        "admin_token_file": token_file(tmp_path, ADMIN, name="admins"),
    }
    async with replicas(r0), live_router(redis_url, **settings) as router:
        await router.synced(r0)
        assert await list_replicas(router, bearer(CALLER)) is grpc.StatusCode.PERMISSION_DENIED
        assert await list_replicas(router, bearer(ADMIN)) is grpc.StatusCode.OK
        for token in (CALLER, ADMIN):
            assert (await router.generate([1], metadata=bearer(token))).code is grpc.StatusCode.OK


async def test_a_token_goes_no_further_and_into_no_log(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    r0 = FakeReplica("r0", redis_url)
    tokens = token_file(tmp_path, CALLER)
    async with replicas(r0), live_router(redis_url, auth_token_file=tokens) as router:
        await router.synced(r0)
        metadata = [*bearer(CALLER), ("proxy-authorization", CALLER), ("x-mine", "1")]
        assert (await router.generate([1], metadata=metadata)).code is grpc.StatusCode.OK
        await router.generate([1], metadata=bearer(STRANGER))
        told = asyncio.create_task(tell_of_turned_away(router.parts.plane, period_s=0.01))
        await asyncio.sleep(0.2)
        told.cancel()
        (served,) = r0.served
        assert served.metadata["x-mine"] == "1"
        assert not [key for key in served.metadata if "authorization" in key]
        assert CALLER not in str(served.metadata)
    (line,) = [r.getMessage() for r in caplog.records if "turned away" in r.getMessage()]
    assert line.endswith("reason=wrong_token times=1 last=127.0.0.1")
    assert not [token for token in (CALLER, STRANGER) if token in caplog.text]


async def test_a_call_without_a_token_ends_before_its_message_comes(
    redis_url: str, tmp_path: Path
) -> None:
    tokens = token_file(tmp_path, CALLER)
    async with live_router(redis_url, auth_token_file=tokens) as router:
        async with connected(router.running.port) as connection, asyncio.timeout(5):
            await connection.send(frame(HEADERS, END_HEADERS, 1, headers_of(GENERATE)))
            async for kind, flags, stream, _ in connection.frames():
                if (kind, stream) == (HEADERS, 1):
                    assert flags & END_STREAM
                    break
            # What comes nevertheless is nobody's, and other calls go on.
            await connection.send(
                frame(DATA, 0, 1, b"\0" + struct.pack(">I", 9_000) + bytes(9_000))
            )
        large = await router.generate(range(500_000))
        assert large.code is grpc.StatusCode.UNAUTHENTICATED
        assert router.parts.admission.inflight == 0
        assert await router.serving("liveness")


async def test_tokens_change_with_their_file_and_a_file_without_any_changes_nothing(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = token_file(tmp_path, CALLER)
    async with live_router(redis_url, auth_token_file=tokens) as router:

        async def becomes(token: str, code: grpc.StatusCode) -> None:
            async with asyncio.timeout(10 * PERIOD_S):
                while await list_replicas(router, bearer(token)) is not code:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await becomes(CALLER, grpc.StatusCode.OK)
        token_file(tmp_path, CALLER, STRANGER)  # both, while clients are told the new one
        await becomes(STRANGER, grpc.StatusCode.OK)
        assert await list_replicas(router, bearer(CALLER)) is grpc.StatusCode.OK
        token_file(tmp_path, STRANGER)
        await becomes(CALLER, grpc.StatusCode.UNAUTHENTICATED)
        token_file(tmp_path)
        await asyncio.sleep(4 * PERIOD_S)
        assert await list_replicas(router, bearer(STRANGER)) is grpc.StatusCode.OK
        (told,) = [r.getMessage() for r in caplog.records if "no good" in r.getMessage()]
        assert "files=auth-token" in told and "holds 0 tokens" in told
        assert 'refused_files_total{files="auth-token"} 1.0' in await router.metrics()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "tokens holds 0 tokens, expected 1 to 1024"),
        (b"# none\n\n", "tokens holds 0 tokens"),
        (b"0123456789abcdef\nshort\n", "line 2 of tokens has 5 characters, expected at least 16"),
        (b"two words of a token", "line 1 of tokens is no token"),
        ("schlüssel-0123456789".encode(), "line 1 of tokens is no token"),
        (b"0123456789abcdef\n" * (MAX_TOKENS + 1), "tokens holds 1025 tokens"),
    ],
)
def test_a_token_file_that_is_no_good_is_refused_without_its_words(
    content: bytes, said: str
) -> None:
    with pytest.raises(InvalidFile, match=said) as refused:
        parse_tokens(Path("tokens"), content)
    assert not [word for word in ("short", "words", "schl", "0123") if word in str(refused.value)]


async def test_what_is_open_to_others_is_warned_of_at_the_start(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Authority(tmp_path).issue("router")
    tokens = token_file(tmp_path, CALLER)
    tokens.chmod(0o644)

    async def warnings(**settings: object) -> list[str]:
        caplog.clear()
        async with live_router(redis_url, **settings):
            return [r.getMessage() for r in caplog.records if r.name == "router.access"]

    assert await warnings() == []
    in_clear = "prompts and answers cross the network in clear"
    told = await warnings(host="0.0.0.0")
    assert len(told) == 2 and "whoever reaches this address" in told[0] and in_clear in told[1]
    secured = {"tls_cert": pair.cert, "tls_key": pair.key, "auth_token_file": tokens}
    (told_of_file,) = await warnings(host="0.0.0.0", **secured)
    assert "every user of this machine may read the tokens" in told_of_file
    tokens.chmod(0o600)
    assert await warnings(host="0.0.0.0", **secured) == []


async def test_clients_and_the_command_bring_their_token(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    r0 = FakeReplica("r0", redis_url)
    tokens, wrong = token_file(tmp_path, CALLER), token_file(tmp_path, STRANGER, name="wrong")
    mine = Credentials(token=CALLER)
    assert CALLER not in repr(mine)
    async with replicas(r0), live_router(redis_url, auth_token_file=tokens) as router:
        await router.synced(r0)
        address = f"127.0.0.1:{router.running.port}"
        async with AsyncClient(address, mine) as client:
            assert (await client.complete([1, 2])).token_ids

        def blocking() -> None:
            with Client(address, mine) as client:
                assert client.complete([1, 2]).token_ids
            with Client(address) as client, pytest.raises(Unauthenticated, match="token is needed"):
                client.complete([1, 2])

        await asyncio.to_thread(blocking)
        for command in (["status"], ["audit"], ["explain", "--ids", "1,2"]):
            asked = [*command, "--router", address]
            assert await asyncio.to_thread(prefixlb, [*asked, "--token-file", str(tokens)]) == 0
            assert await asyncio.to_thread(prefixlb, asked) == 1
            assert f"{address} wants a token: name a file" in capsys.readouterr().err
        assert await asyncio.to_thread(prefixlb, [*asked, "--token-file", str(wrong)]) == 1
        told = capsys.readouterr().err
        assert f"{address} refuses the token of {wrong}" in told and STRANGER not in told
