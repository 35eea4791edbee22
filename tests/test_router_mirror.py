"""Mirrors against trees over a real stream: whatever Redis loses, every mirror ends equal."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import grpc
import pytest

from proto import keys
from proto.prefixlb.v1.admin_pb2 import PickRequest
from proto.redis_client import open_redis
from router.discovery.redis import LOOKS
from tests.fake_replica import FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until
from tests.ports import free_port
from tests.redis_process import redis_server

pytestmark = pytest.mark.redis


async def change(replica: FakeReplica, rng: random.Random) -> None:
    """One random change of the tree, published."""
    leaves = replica.blocks.leaves()
    if leaves and rng.random() < 0.4:
        await replica.publish(replica.blocks.evict(rng.choice(leaves), rng.randint(1, 3)))
    else:
        await replica.store(rng.choices(range(3), k=rng.randint(1, 5) * replica.block_size))


class Stream:
    """What lies between a replica and Redis, with faults."""

    def __init__(self, replica: FakeReplica, rng: random.Random) -> None:
        self._send, self._rng = replica.send, rng
        self._late: list[bytes] = []
        replica.send = self

    async def __call__(self, batch: bytes) -> None:
        match self._rng.choice(["pass"] * 5 + ["drop", "double", "late"]):
            case "pass":
                await self._send(batch)
            case "double":
                await self._send(batch)
                await self._send(batch)
            case "late":
                self._late.append(batch)
                return
        while self._late:
            await self._send(self._late.pop())

    async def heal(self, replica: FakeReplica) -> None:
        replica.send = self._send
        while self._late:
            await self._send(self._late.pop())


@pytest.mark.parametrize("seed", range(4))
async def test_lost_doubled_and_late_batches_and_restarts_end_in_equal_mirrors(
    redis_url: str, seed: int
) -> None:
    rng = random.Random(seed)
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(3)]
    async with replicas(*fleet), live_router(redis_url) as router:
        await router.synced(*fleet)
        streams = [Stream(replica, rng) for replica in fleet]
        for _ in range(150):
            replica = rng.choice(fleet)
            if rng.random() < 0.02:
                await replica.flush()
            await change(replica, rng)
            if rng.random() < 0.1:
                await asyncio.sleep(rng.uniform(0, 0.02))
        for replica, stream in zip(fleet, streams, strict=True):
            await stream.heal(replica)
            await replica.publish()
        await router.synced(*fleet)
        router.parts.router.check()


Transaction = Any
"""A pipeline of redis-py; what is in it happens to Redis at one moment."""


def xdel(transaction: Transaction, stream: str, ids: list[str]) -> None:
    transaction.xdel(stream, *ids[3:6])


def trim(transaction: Transaction, stream: str, ids: list[str]) -> None:
    transaction.xtrim(stream, maxlen=1, approximate=False)


def flushall(transaction: Transaction, stream: str, ids: list[str]) -> None:
    transaction.flushall()


@pytest.mark.parametrize("damage", [xdel, trim, flushall])
async def test_batches_taken_from_the_stream_before_they_are_read_cost_one_snapshot(
    redis_url: str, damage: Callable[[Transaction, str, list[str]], None]
) -> None:
    rng = random.Random(1)
    r0 = FakeReplica("r0", redis_url)
    stream = keys.deltas("test", "r0")
    async with open_redis(redis_url) as redis, replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with redis.pipeline(transaction=True) as transaction:
            ids: list[str] = []

            async def queue(batch: bytes) -> None:
                ids.append(f"{int(time.time() * 1000) + 100}-{len(ids)}")
                transaction.xadd(stream, {keys.BATCH_FIELD: batch}, id=ids[-1])

            r0.send = queue
            for _ in range(10):
                await change(r0, rng)
            damage(transaction, stream, ids)
            r0.send = r0.xadd
            await transaction.execute()
        await change(r0, rng)
        await router.synced(r0)
        status = (await router.statuses())["r0"]
        assert (status.gaps, status.snapshots) == (1, 2)


async def test_a_flushed_redis_drops_nobody_who_answers_and_at_once_who_does_not(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    r0, dead = FakeReplica("r0", redis_url), FakeReplica("dead", redis_url)
    async with open_redis(redis_url) as redis, replicas(r0, dead), live_router(redis_url) as router:
        await router.synced(r0, dead)
        r0.renewing.clear()
        await redis.flushall()
        await dead.kill()
        members = router.parts.fleet.members
        await until(lambda: "dead" not in members, 4.0, "the dead one is dropped")
        await until(lambda: looked_in_vain(router, "r0"), 6.0, "r0's lease was looked for")
        r0.renewing.set()
        await until(lambda: not router.parts.discovery.without_lease, 2.0, "its lease is back")
        assert "replica leaves replica=r0" not in caplog.text


async def test_a_stream_that_begins_anew_with_smaller_ids_is_read_from_its_beginning(
    redis_url: str,
) -> None:
    """As after a failover to a Redis whose clock is behind."""
    r0 = FakeReplica("r0", redis_url)
    stream = keys.deltas("test", "r0")
    async with open_redis(redis_url) as redis, replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        number = 0

        async def behind(batch: bytes) -> None:
            nonlocal number
            number += 1
            await redis.xadd(stream, {keys.BATCH_FIELD: batch}, id=f"1-{number}")

        r0.send = behind
        await redis.delete(stream)
        await r0.store(prompt_of(40))
        await router.synced(r0)
        assert router.parts.router.mirror("r0").count == 10


async def test_one_gap_under_five_hundred_batches_a_second_costs_exactly_one_snapshot(
    redis_url: str,
) -> None:
    rng = random.Random(2)
    r0 = FakeReplica("r0", redis_url)
    r0.snapshot_pause_s = 0.2
    queued: list[bytes] = []

    async def queue(batch: bytes) -> None:
        queued.append(batch)

    async with open_redis(redis_url) as redis, replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        before, sent, started_s = r0.snapshots, 0, time.monotonic()
        r0.send = queue
        while sent < 1000 or queued:
            while sent < min(1000.0, 1000 * (time.monotonic() - started_s)):
                if sent == 200:
                    r0.seq += 1  # the batch that nobody ever saw
                await r0.publish(r0.blocks.store([rng.getrandbits(64)]))
                sent += 1
            async with redis.pipeline(transaction=False) as pipe:
                for batch in queued:
                    pipe.xadd(keys.deltas("test", "r0"), {keys.BATCH_FIELD: batch})
                queued.clear()
                await pipe.execute()
            await asyncio.sleep(0.01)
        assert sent / (time.monotonic() - started_s) > 500
        r0.send = r0.xadd
        await router.synced(r0)
        assert r0.snapshots - before == 1
        assert (await router.statuses())["r0"].gaps == 1


async def test_a_snapshot_that_breaks_off_is_asked_for_again(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.snapshot_fails = 2
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        assert r0.snapshots == 3
        assert "prefixlb_router_failed_snapshots_total{" in await router.metrics()


async def test_a_flush_of_an_idle_replica_empties_its_mirror(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        assert router.parts.router.mirror("r0").count == 10
        r0.new_epoch()  # only the heartbeat will tell
        await until(lambda: router.parts.router.mirror("r0").count == 0, 2.0)
        await router.synced(r0)


async def test_a_restart_at_the_same_address_starts_empty_and_goes_on(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt)
        await router.synced(r0)
        await r0.kill()
        await r0.restart()
        await router.synced(r0)
        assert router.parts.router.mirror("r0").count == 0
        await r0.store(prompt)
        await router.synced(r0)
        await until(lambda: router.member(r0).state.liveness.value == "live")
        assert (await router.generate(prompt)).usage.cached_tokens == 39


async def test_a_router_that_starts_late_knows_the_trees_before_it_says_so(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(3)]
    async with replicas(*fleet):
        for number, replica in enumerate(fleet):
            await replica.store(prompt_of(40, number))
        async with live_router(redis_url) as router:
            await router.ready()
            assert all(router.equal(replica) for replica in fleet)


async def test_one_connection_reads_the_streams_of_all_replicas(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(20)]
    async with open_redis(redis_url) as redis, replicas(*fleet), live_router(redis_url) as router:
        await router.synced(*fleet)
        most = 0
        for number in range(20):
            for replica in fleet:
                await replica.store(prompt_of(4, number))
            await asyncio.sleep(0.02)
            clients = cast(list[dict[str, str]], await redis.client_list())
            most = max(most, sum("b" in each["flags"] for each in clients))  # waits for a stream
        await router.synced(*fleet)
        assert most == 1


async def test_replicas_hold_the_same_blocks_independently(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0, r1), live_router(redis_url) as router:
        for replica in (r0, r1):
            await replica.store(prompt)
        await router.synced(r0, r1)
        last = r0.chain(prompt)[-1]
        events = r0.blocks.evict(last, 10)
        await r0.publish(events)
        await r0.publish(events)  # twice
        await router.synced(r0, r1)
        assert router.parts.router.mirror("r0").count == 0
        assert router.parts.router.mirror("r1").count == 10
        gauge = re.compile(r'prefixlb_router_mirror_(\w+){.*replica="(r\d)".*} (.+)')
        sizes = {(of, name): float(n) for name, of, n in gauge.findall(await router.metrics())}
        assert sizes["r0", "blocks"] == sizes["r0", "forgotten_blocks"] == 0
        assert 0 <= sizes["r0", "size_bytes"] < sizes["r1", "size_bytes"]
        picked = await router.admin.Pick(PickRequest(request=request_of(prompt)))
        assert (picked.replica_id, picked.matched_tokens) == ("r1", 39)


async def test_batches_of_a_replica_that_left_come_to_nothing(redis_url: str) -> None:
    """... though thousands are queued, and the name starts empty when it joins again."""
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        lease = r0.lease()
        fleet = router.parts.fleet
        batch = r0._batch([]).SerializeToString()
        async with open_redis(redis_url) as redis, redis.pipeline(transaction=False) as pipe:
            for _ in range(5000):
                pipe.xadd(keys.deltas("test", "r0"), {keys.BATCH_FIELD: batch})
            await pipe.execute()
        fleet.update([])
        assert "r0" not in fleet.members
        fleet.update([lease])
        assert router.parts.router.mirror("r0").count == 0
        await router.synced(r0)


@pytest.mark.parametrize("kept", ["nothing", "its members, whose leases have expired"])
async def test_redis_back_after_an_outage_drops_nobody_and_mirrors_end_equal(
    kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the replicas take their time to write themselves anew."""
    caplog.set_level("INFO")
    rng, port = random.Random(3), free_port()
    async with AsyncExitStack() as cleanup:
        with redis_server(port) as url:
            fleet = [FakeReplica("r0", url), FakeReplica("r1", url)]
            await cleanup.enter_async_context(replicas(*fleet))
            router = await cleanup.enter_async_context(live_router(url))
            await router.synced(*fleet)
        for replica in fleet:
            replica.send = nowhere
            replica.renewing.clear()
            for _ in range(20):
                await change(replica, rng)
        links = (router.parts.discovery._link, router.parts.subscriber._link)
        await until(lambda: not any(link.up for link in links), 6.0, "Redis is found to be away")
        assert (await router.generate(prompt_of(40))).code is grpc.StatusCode.OK
        page = await router.metrics()
        assert 'prefixlb_router_redis_up{link="deltas"} 0.0' in page
        assert 'prefixlb_router_redis_up{link="leases"} 0.0' in page
        cleanup.enter_context(redis_server(port))
        if kept != "nothing":
            async with open_redis(url) as redis:
                await redis.zadd(keys.members("test"), {replica.id: 0 for replica in fleet})
        discovery = router.parts.discovery
        await until(lambda: looked_in_vain(router, "r0", "r1"), 8.0, "leases were looked for")
        for replica in fleet:
            replica.send = replica.xadd
            replica.renewing.set()
        await until(lambda: not discovery.without_lease, 3.0, "their leases are there again")
        await router.synced(*fleet)
        assert "replica joins replica=r0" in caplog.text
        assert "replica leaves" not in caplog.text


def looked_in_vain(router: LiveRouter, *names: str) -> bool:
    """Whether these leases were missing more often than a dead replica's may be."""
    absent = router.parts.discovery._absent
    return all(absent.get(name, 0) >= 2 * LOOKS for name in names)


async def nowhere(batch: bytes) -> None:
    """Where batches go while Redis is away."""
