"""Callers that send by themselves, and what a failure tells its caller, over real sockets."""

import asyncio
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

import proto.lookaside
from proto.client import AsyncClient
from proto.credentials import Credentials
from proto.errors import InvalidRequest, LBError, Overloaded, Unauthenticated, Unavailable
from proto.lookaside import AsyncLookaside, Lookaside
from tests.authority import Authority, server_credentials, tls_settings
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, request_of, until

pytestmark = pytest.mark.redis

PROMPT = list(range(40))


def in_flight(router: LiveRouter, replica: FakeReplica) -> int:
    return router.parts.router.in_flight(replica.id)


def address_of(router: LiveRouter) -> str:
    return f"127.0.0.1:{router.running.port}"


async def test_what_is_picked_is_in_flight_for_as_long_as_the_block_lasts(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(PROMPT[:20])
        await router.synced(r0)
        async with AsyncLookaside(address_of(router)) as lookaside:
            async with lookaside.picked(PROMPT) as (replica, route):
                assert (route.replica, route.matched_tokens, route.reason) == ("r0", 20, "prefix")
                assert in_flight(router, r0) == 1
                assert (await replica.complete(PROMPT)).completion_tokens == 3
            assert in_flight(router, r0) == 0

        def without_a_loop() -> int:
            with Lookaside(address_of(router)) as blocking, blocking.picked(PROMPT) as (r, _):
                return in_flight(router, r0) + len(r.complete(PROMPT).token_ids)

        assert await asyncio.to_thread(without_a_loop) == 1 + 3
        assert in_flight(router, r0) == 0


async def test_failures_open_the_breaker_and_the_callers_own_do_not(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with (
        replicas(r0),
        live_router(
            redis_url, breaker_failures=2, breaker_open_s=60.0, breaker_max_open_s=60.0
        ) as router,
        AsyncLookaside(address_of(router)) as lookaside,
    ):
        await router.synced(r0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with lookaside.picked(PROMPT):
                    raise ZeroDivisionError
        assert (await router.statuses())["r0"].breaker == 1
        r0.script = Script(refuse=grpc.StatusCode.UNAVAILABLE)
        for _ in range(2):
            with pytest.raises(Unavailable):
                async with lookaside.picked(PROMPT) as (replica, _):
                    await replica.complete(PROMPT)
        assert (await router.statuses())["r0"].breaker == 3
        assert in_flight(router, r0) == 0


async def test_a_replica_is_dialled_once_however_many_picks_there_are(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with AsyncLookaside(address_of(router)) as lookaside:

            async def ask() -> None:
                async with lookaside.picked(PROMPT) as (replica, _):
                    await replica.complete(PROMPT)

            await ask()
            await asyncio.gather(*(ask() for _ in range(8)))
        assert len({served.peer for served in r0.served}) == 1
        r0.served.clear()

        def in_threads() -> None:
            with Lookaside(address_of(router)) as lookaside, ThreadPoolExecutor(4) as threads:

                def ask(_: int) -> None:
                    with lookaside.picked(PROMPT) as (replica, _):
                        replica.complete(PROMPT)

                ask(0)
                list(threads.map(ask, range(8)))

        await asyncio.to_thread(in_threads)
        assert (len(r0.served), len({served.peer for served in r0.served})) == (9, 1)
        assert in_flight(router, r0) == 0


async def test_certificates_are_shown_to_both_and_a_token_to_the_router_alone(
    redis_url: str, authority: Authority, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("token-of-this-caller\n")
    own, caller = authority.issue("router", "router.lb.svc"), authority.issue("caller", "caller")
    mine = authority.credentials(
        caller, tls_server_name="router.lb.svc", token="token-of-this-caller"
    )
    r0 = FakeReplica(
        "r0", redis_url, credentials=server_credentials(authority.issue("r0"), authority.ca)
    )
    settings = {
        **tls_settings(own, authority.ca),
        **{"replica_tls_ca": authority.ca, "replica_tls_cert": own.cert},
        **{"replica_tls_key": own.key, "auth_token_file": tokens},
    }
    async with replicas(r0), live_router(redis_url, **settings) as router:
        await router.synced(r0)
        address = address_of(router)
        async with AsyncLookaside(address, mine) as lookaside:
            async with lookaside.picked(PROMPT) as (replica, _):
                assert (await replica.complete(PROMPT)).completion_tokens == 3
                assert in_flight(router, r0) == 1
            assert in_flight(router, r0) == 0

        def without_a_loop() -> None:
            with Lookaside(address, mine) as blocking, blocking.picked(PROMPT) as (replica, _):
                assert replica.complete(PROMPT).completion_tokens == 3

        await asyncio.to_thread(without_a_loop)
        assert in_flight(router, r0) == 0
        assert [served.metadata.get("authorization") for served in r0.served] == [None, None]

        theirs = authority.credentials(caller, token="token-of-the-replicas")
        async with (
            AsyncLookaside(address, mine, replica_credentials=theirs) as lookaside,
            lookaside.picked(PROMPT) as (replica, _),
        ):
            await replica.complete(PROMPT)
        assert r0.served[-1].metadata["authorization"] == "Bearer token-of-the-replicas"

        refused: tuple[tuple[Credentials, type[LBError]], ...] = (
            (replace(mine, token=""), Unauthenticated),
            (replace(mine, token="token-of-a-stranger"), Unauthenticated),
            (replace(mine, tls_cert=None, tls_key=None), Unavailable),
        )
        for credentials, error in refused:
            async with AsyncLookaside(address, credentials) as lookaside:
                with pytest.raises(error):
                    async with lookaside.picked(PROMPT):
                        raise AssertionError("picked")
        assert in_flight(router, r0) == 0


async def test_an_error_says_whether_and_when_to_ask_again(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=60.0)
    async with (
        replicas(r0),
        live_router(redis_url, max_inflight=1, queue_size=0) as router,
        AsyncClient(address_of(router)) as client,
    ):
        await router.synced(r0)
        running = router.inference.Generate(request_of([1]))
        await until(lambda: router.parts.admission.inflight == 1)
        with pytest.raises(Overloaded) as refused:
            await client.complete([2])
        assert (refused.value.is_retryable, refused.value.retry_after_s) == (True, 1.0)
        running.cancel()
        await until(lambda: router.parts.admission.inflight == 0)
        with pytest.raises(InvalidRequest) as wrong:
            await client.complete([], timeout_s=5.0)
        assert (wrong.value.is_retryable, wrong.value.retry_after_s) == (False, None)


async def test_the_example_runs(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    r0 = FakeReplica("r0", redis_url)
    example = textwrap.dedent((proto.lookaside.__doc__ or "").split("\n\n")[1])
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        example = example.replace("127.0.0.1:30000", address_of(router))
        names = {"AsyncLookaside": AsyncLookaside}
        exec(f"async def run():\n{textwrap.indent(example, '    ')}", names)
        await names["run"]()  # type: ignore[operator]
    assert capsys.readouterr().out.startswith("r0 0 ")
