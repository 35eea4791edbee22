"""A short campaign of faults: nothing is lost, and every mirror equals its tree again."""

import asyncio
import random
from pathlib import Path

import pytest
from redis.asyncio import Redis

from proto import keys
from router.cli.child import Child
from tests.chaos import faults
from tests.chaos.campaign import campaign
from tests.chaos.load import BROKEN, Load
from tests.chaos.relay import Mangle, Relay
from tests.fake_replica import FakeReplica, Script
from tests.live_router import until

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]

SOME = [
    faults.redis_restarts,
    faults.redis_is_full_and_evicts_our_keys,
    faults.redis_fails_over_to_a_copy,
    faults.replica_dies_and_restarts,
    faults.replica_freezes,
    faults.replica_is_flushed,
    faults.router_dies_and_restarts,
    faults.router_freezes,
    faults.deltas_are_dropped,
    faults.deltas_are_reordered,
]
SCALE = 0.15
"""Of how long faults are held in a full campaign."""


async def nothing_to_break(scene: faults.Scene) -> None:
    raise faults.Missed("all was broken before")


async def test_after_each_fault_every_mirror_heals_and_no_request_was_lost(tmp_path: Path) -> None:
    order = list(SOME)
    random.Random(1).shuffle(order)
    async with campaign(
        tmp_path, seed=1, hold_s=lambda full_s: SCALE * full_s, replicas=2
    ) as field:
        trials = [await field.throw(fault) for fault in order]
        missed = await field.throw(nothing_to_break)
    outcomes = field.load.outcomes
    assert [trial for trial in trials if trial.failure] == []
    assert missed.failure == "did not bite: all was broken before"
    assert outcomes.violations == []
    assert outcomes.counts["answered"] > 100
    assert field.memory.excess == {}


@pytest.mark.parametrize(
    ("mangle", "touched"),
    [
        (Mangle(), 0),
        (Mangle(drop=1.0), 20),
        (Mangle(double=1.0), 20),
        (Mangle(delay_s=0.01), 20),
        (Mangle(late=1.0), 0),  # all as late as each other: in order
    ],
)
async def test_the_relay_counts_batches_that_did_not_arrive_once_in_order_and_at_once(
    mangle: Mangle, touched: int, redis_url: str
) -> None:
    relay = Relay(redis_url, "source", "target", ["r"], random.Random(1))
    source, target = (keys.deltas(cluster, "r") for cluster in (relay.source, relay.target))
    relaying = asyncio.create_task(relay.run())
    async with Redis.from_url(redis_url) as client:
        while not await client.exists(target):  # it reads what comes from now on
            await client.xadd(source, {keys.BATCH_FIELD: b"first"})
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
        relay.mangle = mangle
        for _ in range(20):
            await client.xadd(source, {keys.BATCH_FIELD: b"batch"})
        await asyncio.sleep(0.5)
    relaying.cancel()
    await asyncio.wait((relaying,))
    assert relay.touched == touched


async def test_an_answer_may_break_only_while_its_replica_is_being_broken(
    redis_url: str, tmp_path: Path
) -> None:
    replica = FakeReplica("replica-0", redis_url)
    replica.script = Script(fail_after=1, metadata=(("prefixlb-replica", "replica-0"),))
    await replica.start()
    router = Child("router", [], address=replica.address, log=tmp_path / "log")
    load = Load([router], [(5, 6, 7)], workers=1, seed=1)
    counts, violations = load.outcomes.counts, load.outcomes.violations
    with load.disturbing("replica-0"):
        asking = asyncio.create_task(load.run())
        await until(lambda: counts["failed after it had begun"] >= 2, what="excused")
        assert violations == []
    with load.disturbing("replica-1"):
        await until(lambda: counts[BROKEN] >= 2, what="not excused")
    asking.cancel()
    await asyncio.wait((asking,))
    await replica.kill()
    assert [each for each in violations if not each.startswith(BROKEN)] == []
