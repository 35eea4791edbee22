"""Who left the fleet and whether Redis is away, as a router tells it."""

import re
from contextlib import ExitStack

import pytest

from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.delta_pb2 import Lease
from router.departures import MAX_DEPARTURES, SHOWN_S, Departures
from router.redis_link import RedisLink
from tests.fake_replica import FakeReplica, replicas
from tests.fakes import FakeClock
from tests.http_page import ask
from tests.live_router import LiveRouter, live_router, until
from tests.redis_process import redis_server
from tests.test_audit import audit


def lease(number: int) -> Lease:
    return Lease(replica_id=f"r{number}", address=f"h:{number}")


def test_the_last_to_leave_are_told_for_a_minute_unless_they_come_back() -> None:
    clock = FakeClock()
    departures = Departures(clock=clock)

    def told() -> list[tuple[str, float]]:
        return [(each.lease.replica_id, ago_s) for each, ago_s in departures]

    departures.add(lease(0), "it is no longer found")
    clock.advance(5)
    departures.add(lease(1), "it changed")
    assert told() == [("r1", 0), ("r0", 5)]
    departures.lift("r1")
    clock.advance(SHOWN_S - 6)
    assert told() == [("r0", SHOWN_S - 1)]
    departures.add(lease(0), "again")
    assert told() == [("r0", 0)]
    clock.advance(SHOWN_S)
    assert told() == []
    for number in range(MAX_DEPARTURES + 1):
        departures.add(lease(number), "all at once")
    assert [name for name, _ in told()] == [f"r{n}" for n in range(MAX_DEPARTURES, 0, -1)]


def test_a_link_is_away_from_its_first_failure_until_an_answer_or_nobody_asks() -> None:
    clock = FakeClock()
    link = RedisLink("deltas", clock=clock)
    assert link.away_s == 0
    for expected in (0, 3):
        link.failed(OSError())
        assert link.away_s == expected
        clock.advance(3)
    link.answered()
    assert link.away_s == 0
    link.failed(OSError())
    clock.advance(3)
    link.rests()
    assert link.away_s == 0


async def listed(router: LiveRouter) -> admin_pb2.ListReplicasResponse:
    return await router.admin.ListReplicas(admin_pb2.ListReplicasRequest())


@pytest.mark.redis
async def test_a_replica_that_died_is_told_until_it_is_back(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with live_router(redis_url) as router:
        async with replicas(r0):
            await router.synced(r0)
            assert not (await listed(router)).departures
        await until(lambda: not router.parts.fleet.members, 15.0, "it leaves")
        (left,) = (await listed(router)).departures
        assert (left.replica_id, left.address) == ("r0", r0.address)
        assert left.why == "it is no longer found" and 0 <= left.ago_s < 5
        page = (await ask(router.running.metrics_port, "/ui/api/fleet")).json
        assert page["departures"][0]["replica_id"] == "r0" and page["redis_away_s"] == 0
        assert page["notes"][0].startswith("no replica is in the fleet; r0 left ")
        await r0.restart()
        await router.synced(r0)
        assert not (await listed(router)).departures
        await r0.kill()


@pytest.mark.redis
async def test_a_redis_that_is_away_is_told_and_is_why_an_audit_cannot_tell() -> None:
    with ExitStack() as redis:
        url = redis.enter_context(redis_server())
        r0 = FakeReplica("r0", url)
        async with replicas(r0), live_router(url) as router:
            await router.synced(r0)
            assert (await listed(router)).redis_away_s == 0
            redis.close()
            await until(lambda: router.parts.silence._link.away_s > 0, 5.0, "it is missed")
            r0.seq += 1  # the mirror does not hear of it
            (undecided,) = await audit(router)
            assert undecided.outcome == admin_pb2.AUDIT_OUTCOME_UNDECIDED
            assert re.fullmatch(r"Redis has been away for \d+ s: .*", undecided.detail)
            assert (await listed(router)).redis_away_s > 1
            page = (await ask(router.running.metrics_port, "/ui/api/fleet")).json
            assert page["redis_away_s"] > 1 and "Redis has been away" in page["notes"][-1]
