"""Replicas that answer their health checks and fail their requests, over real sockets."""

import time
from collections import Counter

import grpc
import pytest

from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, until

pytestmark = pytest.mark.redis

BREAKER = {"breaker_failures": 3, "breaker_open_s": 0.6, "breaker_max_open_s": 2.0}


def state(router: LiveRouter, replica: FakeReplica) -> str:
    core = router.parts.router
    return core.breaker(replica.id, now_s=time.monotonic()).state


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
async def test_a_replica_that_fails_all_requests_fast_does_not_attract_them(
    redis_url: str, code: grpc.StatusCode
) -> None:
    """Idle, healthy by its checks, and broken: least loaded, it would get everything."""
    broken, sound = FakeReplica("broken", redis_url), FakeReplica("sound", redis_url)
    broken.script = Script(refuse=code)
    async with (
        replicas(broken, sound),
        live_router(redis_url, policy="round_robin", **BREAKER) as router,
    ):
        await router.synced(broken, sound)
        codes = Counter([(await router.generate([number])).code for number in range(30)])
        assert codes[code] == 3
        assert len(broken.served) == 3
        status = (await router.statuses())["broken"]
        assert (status.breaker, status.breaker_openings, status.live) == (3, 1, True)
        page = await router.metrics()
        assert 'breaker_state{replica="broken",state="open"} 1.0' in page
        assert 'breaker_openings_total{model="tiny",replica="broken"} 1.0' in page

        await until(lambda: state(router, broken) == "half_open", 2.0)
        assert {(await router.generate([number])).code for number in range(9)} == {
            grpc.StatusCode.OK,
            code,
        }
        assert len(broken.served) == 4  # one of nine tried
        broken.script = Script()
        await until(lambda: state(router, broken) == "half_open", 2.0)
        for number in range(9):
            assert (await router.generate([number])).code is grpc.StatusCode.OK
        assert state(router, broken) == "closed"
        assert len(broken.served) >= 7


async def test_a_lone_replica_is_tried_though_its_breaker_is_open(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(refuse=grpc.StatusCode.INTERNAL)
    async with replicas(r0), live_router(redis_url, **BREAKER) as router:
        await router.synced(r0)
        for number in range(5):
            assert (await router.generate([number])).code is grpc.StatusCode.INTERNAL
        assert state(router, r0) == "open"
        r0.script = Script()
        assert (await router.generate([7])).code is grpc.StatusCode.OK
        assert state(router, r0) == "closed"
        assert "prefixlb_router_last_resort_picks_total 3.0" in await router.metrics()


async def test_an_overloaded_replica_gets_requests_again_without_anybodys_help(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    r0.script = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with (
        replicas(r0, r1),
        live_router(redis_url, policy="round_robin", **BREAKER) as router,
    ):
        await router.synced(r0, r1)
        for number in range(8):
            assert (await router.generate([number])).replica == "r1"
        assert len(r0.served) == 1
        assert (await router.statuses())["r0"].breaker == 2
        r0.script = Script()
        await until(lambda: state(router, r0) == "closed", 2.0, "the mark ends by itself")
        answers = [await router.generate([number]) for number in range(4)]
        assert {answer.replica for answer in answers} == {"r0", "r1"}


async def test_deadlines_that_pass_without_a_word_open_it_and_impatient_clients_do_not(
    redis_url: str,
) -> None:
    hung, sound = FakeReplica("hung", redis_url), FakeReplica("sound", redis_url)
    hung.script = Script(first_after_s=60.0)
    async with (
        replicas(hung, sound),
        live_router(redis_url, policy="round_robin", **BREAKER) as router,
    ):
        await router.synced(hung, sound)
        for number in range(10):
            await router.generate([number], timeout_s=0.05)
        assert state(router, hung) == "closed"
        for number in range(6):
            await router.generate([number], timeout_s=1.1)
        assert state(router, hung) != "closed"
