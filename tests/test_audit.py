"""An audit says equal only where every block is, and finds the one that is not."""

import asyncio
import random
from contextlib import suppress

import grpc
import pytest
from grpc import aio

from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.admin_pb2 import AuditRequest, AuditResponse
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Stored
from radix_rs import HASH_VERSION, BlockSet, Router
from router.auditor import SHOWN_HASHES, Auditor
from router.redis_link import RedisLink
from tests.fake_replica import FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of
from tests.twins import hash_key

pytestmark = pytest.mark.redis

EQUAL = admin_pb2.AUDIT_OUTCOME_EQUAL


async def audit(router: LiveRouter, *names: str) -> list[AuditResponse]:
    return [each async for each in router.admin.Audit(AuditRequest(replica_ids=names))]


async def churn(replica: FakeReplica) -> None:
    """Store and evict, a few hundred batches a second, until cancelled."""
    rng = random.Random(1)
    while True:
        await replica.store(prompt_of(rng.randrange(4, 80), seed=rng.randrange(50)))
        if leaves := replica.blocks.leaves():
            await replica.publish(replica.blocks.evict(rng.choice(leaves), rng.randrange(1, 9)))
        await asyncio.sleep(0.003)


async def test_mirrors_that_follow_a_changing_tree_are_equal_as_of_one_batch(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        r0.snapshot_pause_s = 0.1  # some thirty batches pass the snapshot
        changing = asyncio.create_task(churn(r0))
        await asyncio.sleep(0.2)
        audited = await audit(router)
        changing.cancel()
        with suppress(asyncio.CancelledError):
            await changing
        assert [(each.replica_id, each.outcome) for each in audited] == [
            ("r0", EQUAL),
            ("r1", EQUAL),
        ]
        assert audited[0].tree_blocks == audited[0].mirror_blocks > 0
        assert (audited[0].epoch, audited[1].tree_blocks) == (r0.epoch, 0)


class Forgetful:
    """A router whose index lost some blocks and made one up, with its numbers as they were."""

    def __init__(self, router: Router, lost: int, made_up: int) -> None:
        self._router, self._lost, self._made_up = router, lost, made_up

    def __getattr__(self, name: str) -> object:
        return getattr(self._router, name)

    def block_set(self, replica: str) -> BlockSet:
        at = self._router.mirror(replica)
        hashes = [*self._router.blocks(replica)[self._lost :], self._made_up]
        stored = [DeltaEvent(stored=Stored(hashes=[each])) for each in hashes]
        wrong = Router(hash_key=hash_key(b""))
        wrong.add_replica(replica, model="tiny", block_size=4)
        snapshot = DeltaBatch(
            epoch=at.epoch, seq=at.seq, block_size=4, hash_version=HASH_VERSION, events=stored
        )
        wrong.apply_snapshot(replica, snapshot.SerializeToString(), True)
        return wrong.block_set(replica)


@pytest.mark.parametrize("lost", [1, SHOWN_HASHES, SHOWN_HASHES + 1])
async def test_blocks_that_digest_and_count_hide_are_listed(redis_url: str, lost: int) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(4 * (SHOWN_HASHES + 10)))
        await router.synced(r0)
        wrong = Forgetful(router.parts.router, lost, made_up=77)
        auditor = Auditor(
            wrong,  # type: ignore[arg-type]
            router.parts.fleet,
            hash_key=hash_key(b""),
            link=RedisLink("deltas"),
        )
        [found] = [each async for each in auditor.audit(["r0"])]
        assert found.outcome == admin_pb2.AUDIT_OUTCOME_DIFFERENT
        assert (found.missing, found.extra, list(found.extra_hashes)) == (lost, 1, [77])
        held = sorted(r0.blocks.parents)
        assert list(found.missing_hashes) == held[: min(lost, SHOWN_HASHES)]


async def test_a_tree_that_begins_anew_during_its_snapshot_is_compared_in_its_new_life(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        r0.snapshot_pause_s = 0.1
        auditing = asyncio.create_task(audit(router, "r0"))
        await asyncio.sleep(0.05)
        await r0.flush()
        await r0.store(prompt_of(12, seed=1))
        [found] = await auditing
        assert (found.outcome, found.epoch, found.tree_blocks) == (EQUAL, r0.epoch, 3)


STRAY = DeltaEvent(stored=Stored(hashes=[77]))
"""A block that no count and no digest knows of."""


async def test_a_snapshot_that_contradicts_itself_is_undecided_and_no_fault_of_the_mirror(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        before = r0.snapshots
        r0.expected = [STRAY]
        [found] = await audit(router)
        assert found.outcome == admin_pb2.AUDIT_OUTCOME_UNDECIDED
        assert found.detail == "its digest does not prove it: mismatch"
        assert r0.snapshots == before + 1


async def test_a_batch_that_contradicts_itself_is_not_in_the_tree_compared(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        r0.snapshot_pause_s = 0.1
        auditing = asyncio.create_task(audit(router))
        await asyncio.sleep(0.05)
        await r0.publish([STRAY])
        [found] = await auditing
        assert (found.outcome, found.tree_blocks) == (EQUAL, 10)


async def test_a_replica_without_an_answer_is_undecided_with_the_reason(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r1), live_router(redis_url) as router:
        await r0.start()
        await router.synced(r0, r1)
        await r0.kill()
        gone, there = await audit(router)
        assert gone.outcome == admin_pb2.AUDIT_OUTCOME_UNDECIDED
        assert "UNAVAILABLE" in gone.detail
        assert there.outcome == EQUAL


async def test_an_unknown_replica_is_not_found_and_the_known_ones_are_named(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        with pytest.raises(aio.AioRpcError, match="unknown replica r9; in the fleet: r0") as raised:
            await audit(router, "r0", "r9")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
