"""Picks for callers that send by themselves."""

from array import array

import grpc
import pytest
from grpc import aio

from proto.errors import InvalidRequest, Overloaded
from proto.prefixlb.v1.admin_pb2 import PickRequest, PickResponse, ReleaseRequest
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from radix_rs import Router, Rules
from router.leases import MAX_LEASE_S, MAX_LEASES, Leases
from tests.fake_replica import FakeReplica, replicas
from tests.fakes import FakeClock
from tests.live_router import LiveRouter, live_router, prompt_of, request_of
from tests.twins import hash_key


class Rig:
    """Leases of a router with one replica, on a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.expired = 0
        self.router = Router(hash_key=hash_key(b""), rules=Rules(breaker_failures=2))
        self.router.add_replica("r0", model="m", block_size=4)
        self.router.set_eligible("r0", True)
        self.leases = Leases(self.router, expired=self._count, clock=self.clock)

    def _count(self) -> None:
        self.expired += 1

    def lease(self, lease_s: float = 10.0) -> int:
        self.leases.check(lease_s)
        pick = self.router.pick(array("I", [1]), model="m", now_s=self.clock())
        assert pick is not None
        return self.leases.give(pick.ticket, lease_s)

    @property
    def in_flight(self) -> int:
        return self.router.in_flight("r0")

    @property
    def breaker(self) -> str:
        return self.router.breaker("r0", now_s=self.clock()).state


def test_a_lease_is_in_flight_until_it_is_released_once() -> None:
    rig = Rig()
    lease = rig.lease()
    assert rig.in_flight == 1
    assert not rig.leases.release(lease ^ 1, 0)
    assert rig.leases.release(lease, 0)
    assert not rig.leases.release(lease, 0)
    assert (rig.in_flight, len(rig.leases), rig.expired) == (0, 0, 0)


def test_a_lease_that_nobody_releases_runs_out() -> None:
    rig = Rig()
    long, short = rig.lease(20.0), rig.lease(5.0)
    rig.clock.advance(6.0)
    rig.leases.sweep()
    assert (rig.in_flight, rig.expired) == (1, 1)
    assert not rig.leases.release(short, 0)
    assert rig.leases.release(long, 0)
    rig.clock.advance(20.0)
    rig.leases.sweep()
    assert (rig.in_flight, rig.expired) == (0, 1)


def test_leases_are_bounded_in_time_and_number() -> None:
    rig = Rig()
    for lease_s in (-1.0, MAX_LEASE_S + 1, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="expected 0 or up to 600"):
            rig.lease(lease_s)
    for _ in range(MAX_LEASES):
        rig.lease()
    with pytest.raises(Overloaded, match="10000 leases"):
        rig.lease()
    rig.clock.advance(11.0)
    rig.lease()
    assert rig.in_flight == 1


def test_how_a_leased_request_ended_counts_for_the_replicas_breaker() -> None:
    rig = Rig()
    assert rig.leases.release(rig.lease(), grpc.StatusCode.CANCELLED.value[0])
    assert rig.leases.release(rig.lease(), grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert rig.breaker == "closed"
    assert rig.leases.release(rig.lease(), grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert rig.breaker == "overloaded"
    rig.clock.advance(1.5)
    assert rig.breaker == "closed"
    for _ in range(2):
        assert rig.leases.release(rig.lease(), grpc.StatusCode.UNAVAILABLE.value[0])
    assert rig.breaker == "open"
    rig.clock.advance(1.5)
    assert rig.leases.release(rig.lease(), grpc.StatusCode.OK.value[0])
    assert rig.breaker == "closed"


@pytest.mark.redis
async def test_a_caller_picks_sends_by_itself_and_releases(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)

    async def pick(router: LiveRouter, number: int, lease_s: float) -> PickResponse:
        request = PickRequest(request=request_of(prompt_of(40, number)), lease_s=lease_s)
        return await router.admin.Pick(request)

    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        assert (await pick(router, 0, 0.0)).ticket == 0
        picks = [await pick(router, number, 30.0) for number in range(4)]
        assert sorted(each.replica_id for each in picks) == ["r0", "r0", "r1", "r1"]
        assert {s.in_flight for s in (await router.statuses()).values()} == {2}
        assert "prefixlb_router_leased_picks 4.0" in await router.metrics()
        async with aio.insecure_channel(picks[0].address) as channel:
            call = InferenceStub(channel).Generate(request_of(prompt_of(40, 0)))
            assert len([message async for message in call]) == 4
        for each in picks:
            assert (await router.admin.Release(ReleaseRequest(ticket=each.ticket))).released
        assert not (await router.admin.Release(ReleaseRequest(ticket=picks[0].ticket))).released
        assert {s.in_flight for s in (await router.statuses()).values()} == {0}
        with pytest.raises(aio.AioRpcError, match="lease_s is 601"):
            await pick(router, 9, 601.0)
