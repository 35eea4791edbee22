"""Faults that users of such systems reported, and the tests that prove this one does not have them.

 1. llm-d-router#2853: an engine restarts in place, its old blocks still score.
    test_reported_faults.test_a_killed_replica_is_back_with_an_empty_mirror_and_is_not_preferred
    test_cluster.test_killed_replica_comes_back_empty_at_its_address
 2. llm-d-router#1736: a deleted replica's queued events add its blocks again.
    test_reported_faults.test_ten_thousand_queued_batches_of_a_replica_that_left_add_nothing
    test_reported_faults.test_what_a_killed_replica_had_queued_brings_nothing_of_it_back
    test_router_mirror.test_batches_of_a_replica_that_left_come_to_nothing
 3. kthena#1428, #1541: a restart of the engine and one of its connection are taken for each other.
    test_reported_faults.test_a_killed_replica_is_back_with_an_empty_mirror_and_is_not_preferred
    test_reported_faults.test_a_replica_whose_connections_to_redis_break_keeps_its_mirror
    test_announcement.test_redis_away_and_back_costs_no_request_and_no_batch
 4. kthena#1223: what a dead replica owns never expires.
    test_reported_faults.test_a_killed_replica_is_gone_from_router_and_redis_in_time
    test_router_faults.test_the_mirror_of_a_dead_replica_goes_with_its_lease_and_its_next_life_starts_empty
 5. aibrix#2287: a flush of an idle engine reaches nobody.
    test_reported_faults.test_a_flush_of_an_idle_replica_empties_its_mirror_within_a_heartbeat
    test_announcement.test_a_flush_while_idle_reaches_redis_by_itself_and_while_busy_is_refused
 6. aibrix#2723: one replica's eviction takes the block from all, and a counter below zero.
    test_router_mirror.test_replicas_hold_the_same_blocks_independently
    index/tests.rs:one_replicas_eviction_leaves_the_others_match
 7. llm-d-router#1737: the sequence is read and never compared.
    test_router_mirror.test_batches_taken_from_the_stream_before_they_are_read_cost_one_snapshot
    test_router_alarms.test_a_gap_and_its_resync_are_counted
 8. dynamo#1056: a restarted router knows nothing of warm replicas.
    test_router_mirror.test_a_router_that_starts_late_knows_the_trees_before_it_says_so
 9. redis#13473, #13957: a stream trimmed while nobody read it looks whole.
    test_reported_faults.test_a_stream_trimmed_while_the_router_was_away_is_no_loss
    test_router_mirror.test_batches_taken_from_the_stream_before_they_are_read_cost_one_snapshot
10. dynamo#7072: one gap leads to resync after resync.
    test_router_mirror.test_one_gap_under_five_hundred_batches_a_second_costs_exactly_one_snapshot
    test_mirror.test_a_gap_costs_exactly_one_snapshot_however_many_batches_come_meanwhile
11. dynamo#7863: a replica that registers again is compared with its former sequence.
    test_reported_faults.test_a_replica_that_joins_again_is_followed_from_its_first_batch
12. dynamo#8012, llm-d-kv-cache#680: a block announced twice goes with the first removal, or never.
    test_wire.test_a_router_takes_each_batch_as_it_should
    index/tests.rs:a_block_stored_twice_goes_with_one_removal
13. production-stack#687, aibrix#892: the index grows until its process dies.
    test_reported_faults.test_distinct_prompts_without_end_leave_the_index_at_its_bound_and_proven
    index/bound_tests.rs:distinct_prompts_leave_it_as_large_as_the_bound
    index/bound_tests.rs:what_is_matched_now_and_then_outlives_what_is_not
14. dynamo#10774: splits are never undone, and inner nodes grow for ever.
    index/tests.rs:a_million_changes_that_leave_the_content_as_it_was_leave_the_tree_as_it_was
    index/tests.rs:runs_that_a_branch_had_cut_are_joined_when_it_goes
15. production-stack#1008, sglang#30270: an evicted pod stays, as it is listed without an address.
    test_kubernetes_discovery.test_what_waits_at_an_evicted_pod_is_answered_by_another_within_5_s
    test_kubernetes_discovery.test_an_evicted_pod_without_an_address_is_no_ghost
    test_kubernetes_discovery.test_who_is_not_ready_goes_and_who_terminates_stays_until_it_is_gone
    test_kubernetes_discovery.test_what_no_event_has_told_shows_when_all_is_read_anew
16. vllm#44701, sglang#24568: tenants share blocks by a salt that equals a name, or is not hashed.
    test_router_routing.test_namespaces_share_no_prefix
    test_generate.test_namespaces_share_nothing
    test_privacy.test_nothing_in_redis_contains_a_prompt_and_namespaces_share_no_block
17. dynamo#1232, #9376: another block size turns cache routing off in silence.
    test_router_discovery.test_another_block_size_than_the_models_is_refused_loudly_and_used_once_it_fits
    test_router_alarms.test_batches_of_another_kind_are_refused_loudly_and_nothing_is_believed
18. dynamo#12315: the load of clients that vanished stays booked.
    test_reported_faults.test_a_thousand_streams_given_up_in_three_ways_leave_nothing
    test_reported_faults.test_what_a_thousand_streams_held_is_free_a_second_after_they_are_given_up
    test_main_job.test_two_hundred_requests_with_cancels_and_deadlines_leave_nothing
    test_router_discovery.test_a_lease_that_is_gone_for_a_moment_cuts_no_answer
19. vllm-project/router#238, sglang#32195: one hot replica switches prefix routing off for all.
    test_reported_faults.test_one_hot_replica_costs_the_others_no_affinity_and_the_least_loaded_gets_what_is_cold
20. production-stack#1073: few long answers make a replica look idle.
    test_reported_faults.test_a_replica_with_long_answers_gets_less_than_its_share_of_cold_requests
"""

import asyncio
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import redis
from grpc import aio

import tests
from proto import keys
from proto.client import Client
from proto.prefixlb.v1.admin_pb2 import (
    AUDIT_OUTCOME_EQUAL,
    AuditRequest,
    Candidate,
    ExplainRequest,
    PickRequest,
)
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Stored
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.prefixlb.v1.replica_pb2 import FlushRequest
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from proto.redis_client import open_redis
from router.cli.child import Child
from router.cli.cluster import LocalCluster
from router.cli.fleet_view import ReplicaView, view_fleet
from router.cli.readiness import serves
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, endless, live_router, prompt_of, request_of, until
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.redis

PROMPT = list(range(3, 203))


def test_every_test_of_the_table_exists() -> None:
    directory = Path(tests.__file__).parent
    rows = re.findall(r"^    (\w+)\.(test_\w+)$", __doc__ or "", re.MULTILINE)
    rust = re.findall(r"^    ([\w/]+\.rs):(\w+)$", __doc__ or "", re.MULTILINE)
    assert len(rows) + len(rust) > 30
    for module, name in rows:
        assert f"def {name}(" in (directory / f"{module}.py").read_text(), name
    for path, name in rust:
        source = directory.parent / "radix_rs" / "src" / path
        assert f"fn {name}()" in source.read_text(), name


# With a router in this process and replicas without a model


async def test_ten_thousand_queued_batches_of_a_replica_that_left_add_nothing(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    stream = keys.deltas("test", "r0")
    async with open_redis(redis_url) as client, live_router(redis_url) as router:
        async with replicas(r0):
            await r0.store(prompt_of(40))
            await router.synced(r0)
        events = r0.blocks.store(r0.chain(prompt_of(40, 1)))
        async with client.pipeline(transaction=True) as transaction:
            for _ in range(10_000):
                r0.seq += 1
                transaction.xadd(stream, {keys.BATCH_FIELD: r0._batch(events).SerializeToString()})
            transaction.delete(keys.lease("test", "r0"))
            await transaction.execute()
        router.parts.fleet.update([])
        members, ends_s = router.parts.fleet.members, time.monotonic() + 2.0
        while time.monotonic() < ends_s:
            # The next look at the leases may still have it in its view: then it begins empty.
            assert "r0" not in members or router.parts.router.mirror("r0").count == 0
            await asyncio.sleep(0.02)
        await until(lambda: "r0" not in members, 8.0, "who does not answer leaves")
        await r0.restart()
        try:
            await router.synced(r0)
            assert router.parts.router.mirror("r0").count == 0
        finally:
            await r0.kill()


async def test_a_stream_trimmed_while_the_router_was_away_is_no_loss(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    stream = keys.deltas("test", "r0")
    async with open_redis(redis_url) as client, replicas(r0):
        async with live_router(redis_url) as router:
            await router.synced(r0)

        async def trimmed(batch: bytes) -> None:
            await client.xadd(stream, {keys.BATCH_FIELD: batch}, maxlen=100, approximate=False)

        r0.send = trimmed
        for number in range(1000):
            await r0.store(prompt_of(4, number))
        async with live_router(redis_url) as router:
            await router.ready()
            assert router.equal(r0) and r0.blocks.count == 1000
            await r0.store(prompt_of(40))
            await router.synced(r0)
            status = (await router.statuses())["r0"]
            assert (status.gaps, status.snapshots) == (0, 1)


async def test_a_replica_that_joins_again_is_followed_from_its_first_batch(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.seq = 5000
    async with live_router(redis_url) as router:
        for prompts in (3, 5):
            async with replicas(r0):
                await until(lambda: "r0" in router.parts.fleet.members)
                for number in range(prompts):
                    await r0.store(prompt_of(40, number))
                await router.synced(r0)
                assert router.parts.router.mirror("r0").count == 10 * prompts
                assert (await router.statuses())["r0"].gaps == 0
            router.parts.fleet.update([])
            r0.new_epoch()


async def test_distinct_prompts_without_end_leave_the_index_at_its_bound_and_proven(
    redis_url: str,
) -> None:
    r0, max_bytes = FakeReplica("r0", redis_url), 2**20
    rng = random.Random(5)
    hot = prompt_of(400)
    oldest: list[list[int]] = []

    def proven(router: LiveRouter) -> bool:
        """The mirror proves the replica's tree, though it does not know all of it."""
        mirror = router.parts.router.mirror("r0")
        seen = (mirror.epoch, mirror.seq, mirror.count, mirror.digest)
        return seen == (r0.epoch, r0.seq, r0.blocks.count, r0.blocks.digest)

    async def check(router: LiveRouter) -> None:
        await until(lambda: proven(router), 8.0, "the mirror is proven")
        assert router.parts.router.index_size_bytes <= max_bytes
        assert router.parts.router.mirror("r0").forgotten > 1000
        status = (await router.statuses())["r0"]
        assert (status.gaps, status.snapshots) == (0, 1)
        assert router.member(r0).mirror.totals.mismatches == 0
        [audited] = [each async for each in router.admin.Audit(AuditRequest())]
        assert audited.outcome == AUDIT_OUTCOME_EQUAL, audited
        assert audited.forgotten + audited.mirror_blocks == audited.tree_blocks

    async with replicas(r0):
        async with live_router(redis_url, index_max_bytes=max_bytes) as router:
            await router.synced(r0)
            await r0.store(hot)
            for _ in range(12):
                prompts = [[rng.getrandbits(64) for _ in range(100)] for _ in range(50)]
                oldest += prompts[:5]
                await r0.publish([event for each in prompts for event in r0.blocks.store(each)])
                await until(lambda: proven(router), 8.0, "the mirror is proven")
                answer = await router.admin.Pick(PickRequest(request=request_of(hot)))
                assert answer.matched_tokens == 399, "what is asked for is not forgotten"
            # Evicted from their ends, most of them when they are forgotten in whole or in part.
            for length in (30, 70):
                events = [event for each in oldest for event in r0.blocks.evict(each[-1], length)]
                oldest = [each[:-length] for each in oldest]
                await r0.publish(events)
            assert r0.blocks.count == 100 + 12 * 50 * 100 - 60 * 100
            await check(router)
            assert router.parts.router.index_size_bytes > max_bytes * 0.9
        # A router that begins with a snapshot larger than it may become.
        async with live_router(redis_url, index_max_bytes=max_bytes) as router:
            await router.ready()
            await r0.publish(r0.blocks.store([rng.getrandbits(64) for _ in range(50)]))
            await check(router)


def load(replica: FakeReplica, **figures: int) -> None:
    for name, value in figures.items():
        setattr(replica.load, name, value)


async def picked(router: LiveRouter, prompt: list[int]) -> str:
    answer = await router.admin.Pick(PickRequest(request=request_of(prompt)))
    return str(answer.replica_id)


async def test_one_hot_replica_costs_the_others_no_affinity_and_the_least_loaded_gets_what_is_cold(
    redis_url: str,
) -> None:
    fleet = [FakeReplica(f"r{number}", redis_url) for number in range(4)]
    load(fleet[0], waiting=50, pending_tokens=100_000, running=20)  # and has the smallest tree
    async with replicas(*fleet), live_router(redis_url) as router:
        for number, replica in enumerate(fleet[1:], start=1):
            await replica.store(prompt_of(64, number))
        await router.synced(*fleet)
        kept = 0
        for number in (1, 2, 3):
            for tail in range(20):
                prompt = prompt_of(64, number) + prompt_of(32, 100 + tail)
                kept += await picked(router, prompt) == f"r{number}"
        assert kept >= 57, "95 % of 60"
        # The least loaded has by far the largest tree, so new blocks push out most there.
        load(fleet[1], pending_tokens=2_000)
        load(fleet[3], pending_tokens=1_000)
        for replica in fleet:
            await replica.store(prompt_of(4_000 if replica is fleet[2] else 4, 300))
        await router.synced(*fleet)
        cold = {await picked(router, prompt_of(96, 200 + number)) for number in range(30)}
        assert cold == {"r2"}


async def test_a_replica_with_long_answers_gets_less_than_its_share_of_cold_requests(
    redis_url: str,
) -> None:
    """It has answered nothing lately, so by requests a second it looks idle."""
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    load(r0, running=10, total_slots=10_000, free_slots=5_000)
    load(r1, running=0, total_slots=10_000, free_slots=10_000)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        for number in range(30):
            assert (await router.generate(prompt_of(40, number))).code is grpc.StatusCode.OK
        assert len(r0.served) < 15 and len(r0.served) + len(r1.served) == 30


CLIENT = """
import asyncio, sys
from grpc import aio
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from tests.live_router import endless

async def main():
    async with aio.insecure_channel(sys.argv[1]) as channel:
        stub = InferenceStub(channel)
        calls = [stub.Generate(endless(number)) for number in range(int(sys.argv[2]))]
        await asyncio.gather(*(call.read() for call in calls))
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_thousand_streams_given_up_in_three_ways_leave_nothing(redis_url: str) -> None:
    """Cancelled, past their deadline, and of a client that was killed."""
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=10_000, gap_s=1.0, store=False)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        index = router.parts.router
        address = f"127.0.0.1:{router.running.port}"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address, "334")
        try:
            await until(lambda: index.in_flight("r0") == 334, 60.0, "the client's are in flight")
            cancelled = [router.inference.Generate(request_of([1, 2, 3])) for _ in range(333)]
            await asyncio.gather(*(call.read() for call in cancelled))
            late = [router.inference.Generate(request_of([4]), timeout=3.0) for _ in range(333)]
            await until(lambda: index.in_flight("r0") >= 700, 60.0, "most are in flight")
            codes = await asyncio.gather(*(call.code() for call in late))
            assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
        finally:
            process.kill()
            await process.wait()
        for call in cancelled:
            call.cancel()
        await router.nothing_left(1.0)
        await until(lambda: r0.running == 0, 5.0, "nor there, where Python ends them one by one")
        page = await router.metrics()
        for gauge in ('in_flight{model="tiny",replica="r0"}', "queued", "held_bytes"):
            assert f"prefixlb_router_requests_{gauge} 0.0" in page


# With real processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("faults")
    write_tiny_model(directory / "tiny")
    flags = ("--slots", "4096")
    with LocalCluster(
        model=directory / "tiny", state_dir=directory, replica_flags=flags
    ) as cluster:
        yield cluster


def seen(cluster: LocalCluster, name: str) -> ReplicaView | None:
    views = view_fleet(cluster.router.address)
    return next((view for view in views if view.replica_id == name), None)


def mirrored(cluster: LocalCluster, name: str) -> ReplicaView:
    """The replica, as soon as its mirror equals its tree."""
    view: list[ReplicaView | None] = [None]

    def equal() -> bool:
        view[0] = seen(cluster, name)
        return view[0] is not None and view[0].mirror_equals_tree

    eventually(equal)
    assert view[0] is not None
    return view[0]


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s"
        time.sleep(0.02)


def warm(cluster: LocalCluster, seed: int) -> tuple[Child, list[int]]:
    """A prompt, and the replica that has it cached; its mirror says so."""
    prompt = [3 + (token * seed) % 200 for token in PROMPT]
    with Client(cluster.router.address) as client:
        route = client.complete(prompt, max_tokens=1).route
    assert route
    assert mirrored(cluster, route.replica).status.count >= len(prompt) // 16
    return next(child for child in cluster.replicas if child.name == route.replica), prompt


def candidate(cluster: LocalCluster, name: str, prompt: list[int]) -> Candidate:
    with grpc.insecure_channel(cluster.router.address) as channel:
        explained = AdminStub(channel).Explain(ExplainRequest(request=request_of(prompt)))
    return next(each for each in explained.candidates if each.replica_id == name)


@pytest.mark.slow
async def test_what_a_thousand_streams_held_is_free_a_second_after_they_are_given_up(
    cluster: LocalCluster,
) -> None:
    """Cancelled, past their deadline, and of a client that was killed; on real replicas."""
    address = cluster.router.address

    def fleet() -> list[ReplicaView]:
        return view_fleet(address)

    def in_flight() -> int:
        return sum(view.status.in_flight for view in fleet())

    def at_rest() -> bool:
        loads = [view.info.load for view in fleet() if view.info]
        return in_flight() == 0 and all(
            load.running == load.waiting == 0
            and load.free_slots + load.evictable_slots == load.total_slots
            for load in loads
        )

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address, "334")
    try:
        async with aio.insecure_channel(address) as channel:
            stub = InferenceStub(channel)
            await asyncio.to_thread(eventually, lambda: in_flight() == 334, 60.0)
            cancelled = [stub.Generate(endless(400 + number)) for number in range(333)]
            late = [stub.Generate(endless(800 + number), timeout=3.0) for number in range(333)]
            codes = await asyncio.gather(*(call.code() for call in late))
            assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
            assert in_flight() >= 600, "few have ended by themselves"
            for call in cancelled:
                call.cancel()
            process.kill()
            await process.wait()
            await asyncio.to_thread(eventually, at_rest, 1.0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
def test_a_killed_replica_is_back_with_an_empty_mirror_and_is_not_preferred(
    cluster: LocalCluster,
) -> None:
    victim, prompt = warm(cluster, 3)
    assert candidate(cluster, victim.name, prompt).matched_tokens >= 192
    victim.kill()
    victim.start()
    eventually(lambda: serves(victim.address), 60.0)
    assert mirrored(cluster, victim.name).status.count == 0
    assert candidate(cluster, victim.name, prompt).matched_tokens == 0


@pytest.mark.slow
def test_what_a_killed_replica_had_queued_brings_nothing_of_it_back(
    cluster: LocalCluster,
) -> None:
    """Ten thousand batches, that the router finds when it finds the lease gone."""
    victim, _ = warm(cluster, 5)
    with redis.Redis.from_url(cluster.redis_url) as client:
        cluster.router.signal(signal.SIGSTOP)
        try:
            victim.kill()
            stream = keys.deltas("local", victim.name)
            [(_, fields)] = client.xrevrange(stream, count=1)  # type: ignore[misc]
            batch = DeltaBatch.FromString(fields[keys.BATCH_FIELD])
            batch.events.append(DeltaEvent(stored=Stored(hashes=[77])))
            batch.count += 1
            batch.digest = (batch.digest + 77) % 2**64
            with client.pipeline(transaction=True) as transaction:
                for _ in range(10_000):
                    batch.seq += 1
                    transaction.xadd(stream, {keys.BATCH_FIELD: batch.SerializeToString()})
                transaction.persist(stream)  # or they would go with the lease
                transaction.execute()
            eventually(lambda: not client.exists(keys.lease("local", victim.name)))
        finally:
            cluster.router.signal(signal.SIGCONT)
        eventually(lambda: seen(cluster, victim.name) is None)
        assert client.xlen(stream) >= 10_000, "the batches are still there"
    ends_s = time.monotonic() + 2.0
    while time.monotonic() < ends_s:
        assert seen(cluster, victim.name) is None
        time.sleep(0.05)
    cluster.start()
    assert mirrored(cluster, victim.name).status.count == 0


@pytest.mark.slow
def test_a_replica_whose_connections_to_redis_break_keeps_its_mirror(
    cluster: LocalCluster,
) -> None:
    name = warm(cluster, 7)[0].name
    before = mirrored(cluster, name).status
    broken = 0
    with redis.Redis.from_url(cluster.redis_url) as client:
        for _ in range(20):
            broken += client.client_kill_filter(_type="normal", skipme=True)
            now = seen(cluster, name)
            assert now is not None
            assert (now.status.epoch, now.status.count) == (before.epoch, before.count)
            time.sleep(0.05)
    assert broken >= 5
    eventually(lambda: mirrored(cluster, name).status.seq > before.seq)
    after = mirrored(cluster, name).status
    assert (after.epoch, after.count, after.digest) == (before.epoch, before.count, before.digest)


@pytest.mark.slow
def test_a_flush_of_an_idle_replica_empties_its_mirror_within_a_heartbeat(
    cluster: LocalCluster,
) -> None:
    replica, _ = warm(cluster, 11)
    with grpc.insecure_channel(replica.address) as channel:
        flushed = ReplicaStub(channel).Flush(FlushRequest())
    assert flushed.flushed_tokens >= 192

    def empty() -> bool:
        view = seen(cluster, replica.name)
        return view is not None and view.status.count == 0

    eventually(empty, keys.LEASE_PERIOD_S + 0.5)
    assert mirrored(cluster, replica.name).status.epoch == flushed.epoch


@pytest.mark.slow
def test_a_killed_replica_is_gone_from_router_and_redis_in_time(cluster: LocalCluster) -> None:
    victim, _ = warm(cluster, 13)
    victim.kill()
    with redis.Redis.from_url(cluster.redis_url) as client:
        # Its lease runs out, and is missed in two looks half a second apart.
        eventually(lambda: seen(cluster, victim.name) is None, keys.LEASE_TTL_S + 1.5)

        def gone() -> bool:
            names = [*client.scan_iter(), *client.zrange(keys.members("local"), 0, -1)]
            return bool(names) and not any(victim.name.encode() in name for name in names)

        eventually(gone, keys.LEASE_PERIOD_S + 0.5)
    cluster.start()
