"""What a replica tells a real Redis: its lease, and deltas from which its tree can be rebuilt."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
import redis
from grpc import aio

from proto import keys
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, Lease
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, SamplingParams
from proto.prefixlb.v1.replica_pb2 import FlushRequest, SnapshotRequest
from radix_rs import HASH_VERSION, Router, chain_hashes
from tests.ports import free_port
from tests.redis_process import redis_server
from tests.replica_rig import HASH_KEY, ReplicaRig, replica_rig, tokens_request
from tests.test_generate import numbers

pytestmark = pytest.mark.redis

CLUSTER = "test"
NAME = "replica-a"


def published(url: str) -> list[DeltaBatch]:
    with redis.Redis.from_url(url) as client:
        entries: Any = client.xrange(keys.deltas(CLUSTER, NAME))
    return [DeltaBatch.FromString(fields[keys.BATCH_FIELD]) for _, fields in entries]


async def until(url: str, condition: Callable[[list[DeltaBatch]], bool]) -> list[DeltaBatch]:
    """The batches in Redis once they satisfy `condition`."""
    async with asyncio.timeout(10):
        while True:
            batches = await asyncio.to_thread(published, url)
            if batches and condition(batches):
                return batches
            await asyncio.sleep(0.02)


class RedisSwitch:
    """A Redis that can be taken away and comes back empty at the same address."""

    def __init__(self) -> None:
        self._port = free_port()
        self._running = ExitStack()
        self.url = ""

    def on(self) -> None:
        self.url = self._running.enter_context(redis_server(self._port))

    def off(self) -> None:
        self._running.close()


@pytest.fixture
def redis_switch() -> Iterator[RedisSwitch]:
    switch = RedisSwitch()
    switch.on()
    yield switch
    switch.off()


async def failures(rig: ReplicaRig) -> None:
    """Returns once the replica has found out that Redis is away, by lease and by deltas."""
    async with asyncio.timeout(10):
        while True:
            total = rig.replica.metrics.total
            if total("publish_failures") and total("lease_failures"):
                return
            await asyncio.sleep(0.02)


async def traffic(rig: ReplicaRig, requests: int, seed: int) -> None:
    """Prompts that share beginnings, more of them than the pool holds."""
    rng = random.Random(seed)
    for _ in range(requests):
        stem = numbers(rng.randrange(100), seed=rng.randrange(4))
        prompt = [*stem, *numbers(rng.randrange(1, 60), seed=rng.randrange(1000))]
        await rig.generate(tokens_request(prompt, 5))


def mirror() -> Router:
    router = Router(hash_key=HASH_KEY)
    router.add_replica(NAME, model="tiny", block_size=16)
    return router


async def assert_equals_tree(router: Router, rig: ReplicaRig) -> None:
    info = await rig.info()
    seen = router.mirror(NAME)
    assert (seen.count, seen.digest) == (info.count, info.digest)
    assert len(router.blocks(NAME)) == info.count > 0


def redis_rig(url: str, **overrides: object) -> Any:
    settings = {"redis_url": url, "cluster": CLUSTER, "replica_id": NAME, "slots": 600}
    return replica_rig(**{**settings, **overrides})


async def test_deltas_from_the_first_on_rebuild_the_tree(redis_url: str) -> None:
    async with redis_rig(redis_url) as rig:
        await traffic(rig, 30, seed=1)
        assert (await rig.info()).evicted_tokens > 0
        seq = (await rig.info()).lease.seq
        batches = await until(redis_url, lambda batches: batches[-1].seq > seq)
        router = mirror()
        first = batches[0]
        router.apply_snapshot(
            NAME,
            DeltaBatch(
                epoch=first.epoch, block_size=16, hash_version=HASH_VERSION
            ).SerializeToString(),
            True,
        )  # an empty tree before the first batch
        outcomes = [router.apply(NAME, batch.SerializeToString()).outcome for batch in batches]
        assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
        assert set(outcomes) == {"applied"}
        await assert_equals_tree(router, rig)
        name, label = "prefixlb_replica_last_published_timestamp_seconds", {"model": "tiny"}
        last_s = rig.replica.metrics.registry.get_sample_value(name, label)
        assert last_s is not None and 0 <= time.time() - last_s < 60


async def test_a_snapshot_and_the_deltas_after_it_rebuild_the_tree(redis_url: str) -> None:
    async with redis_rig(redis_url) as rig:
        await traffic(rig, 10, seed=2)
        enough = asyncio.Event()

        async def go_on() -> None:
            for seed in itertools.count(3):
                if enough.is_set():
                    return
                await traffic(rig, 1, seed)

        busy = asyncio.create_task(go_on())
        router = mirror()
        async for chunk in rig.admin.Snapshot(SnapshotRequest()):
            batch, last = chunk.batch, chunk.last
            applied = router.apply_snapshot(NAME, batch.SerializeToString(), last)
        assert last
        assert (applied.outcome, applied.epoch, applied.seq) == ("applied", batch.epoch, batch.seq)
        taken = batch.seq
        await until(redis_url, lambda batches: batches[-1].seq >= taken + 30)
        enough.set()
        await busy
        seq = (await rig.info()).lease.seq
        batches = await until(redis_url, lambda batches: batches[-1].seq > seq)
        later = [each for each in batches if each.seq > taken]
        outcomes = {router.apply(NAME, each.SerializeToString()).outcome for each in later}
        assert outcomes == {"applied"}
        assert any(each.events for each in later)
        await assert_equals_tree(router, rig)


async def test_blocks_have_the_hashes_that_routers_compute(redis_url: str) -> None:
    prompt = np.array(numbers(50, seed=3), dtype=np.uint32)
    async with redis_rig(redis_url) as rig:
        request = tokens_request(prompt.tolist(), 1, extra_key="lora", cache_salt="tenant")
        await rig.generate(request)
        batches = await until(redis_url, lambda batches: batches[-1].count == 3)
    expected = chain_hashes(
        prompt.data,
        hash_key=HASH_KEY,
        model="tiny",
        block_size=16,
        extra_key="lora",
        cache_salt="tenant",
    )
    stored = [block for batch in batches for event in batch.events for block in event.stored.hashes]
    assert stored == expected


async def test_a_flush_while_idle_reaches_redis_by_itself_and_while_busy_is_refused(
    redis_url: str,
) -> None:
    async with redis_rig(redis_url) as rig:
        call = rig.inference.Generate(tokens_request(numbers(50, 1), 500))
        await call.read()
        with pytest.raises(aio.AioRpcError) as caught:
            await rig.admin.Flush(FlushRequest())
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        call.cancel()
        epoch = (await rig.info()).lease.epoch
        await rig.settled()
        flushed = await rig.admin.Flush(FlushRequest())
        assert flushed.epoch != epoch
        assert flushed.flushed_tokens >= 50
        batches = await until(redis_url, lambda batches: batches[-1].epoch == flushed.epoch)
        cleared = next(batch for batch in batches if batch.epoch == flushed.epoch)
        assert (cleared.seq, cleared.count) == (1, 0)
        assert cleared.events[0].WhichOneof("event") == "cleared"
        assert (await rig.info()).lease.epoch == flushed.epoch


async def test_redis_away_and_back_costs_no_request_and_no_batch(
    redis_switch: RedisSwitch,
) -> None:
    async with redis_rig(redis_switch.url) as rig:
        await traffic(rig, 5, seed=4)
        seq = (await rig.info()).lease.seq
        before = await until(redis_switch.url, lambda batches: batches[-1].seq >= seq)
        redis_switch.off()
        await traffic(rig, 10, seed=5)
        await failures(rig)
        redis_switch.on()
        await traffic(rig, 5, seed=6)
        seq = (await rig.info()).lease.seq
        after = await until(redis_switch.url, lambda batches: batches[-1].seq > seq)
        assert {batch.epoch for batch in after} == {before[-1].epoch}
        sent = {batch.seq for batch in before + after}
        # One heartbeat may have come after `before` was read, and gone with that Redis.
        assert len(set(range(1, after[-1].seq + 1)) - sent) <= 1
        assert sum(len(batch.events) for batch in after) > 0


async def test_a_backlog_that_overflows_is_an_alarm_and_shows_as_a_gap_in_seq(
    redis_switch: RedisSwitch, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_rig(redis_switch.url, max_backlog_bytes=400) as rig:
        await traffic(rig, 3, seed=7)
        before = await until(redis_switch.url, lambda batches: batches[-1].count > 0)
        redis_switch.off()
        await traffic(rig, 20, seed=8)
        assert rig.replica.metrics.total("dropped_delta_bytes") > 400
        assert "delta backlog is full, dropped size_bytes=" in caplog.text
        redis_switch.on()
        after = await until(redis_switch.url, lambda batches: True)
        assert after[0].epoch == before[-1].epoch
        assert after[0].seq > before[-1].seq + 1


async def test_keys_of_another_type_in_the_way_are_removed(redis_url: str) -> None:
    async with redis_rig(redis_url) as rig:
        await traffic(rig, 3, seed=4)
        ours = {keys.deltas(CLUSTER, NAME): b"stream", keys.members(CLUSTER): b"zset"}
        with redis.Redis.from_url(redis_url) as client:
            for key in ours:
                client.set(key, "in the way")
            async with asyncio.timeout(10):
                while {key: client.type(key) for key in ours} != ours:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert client.zrange(keys.members(CLUSTER), 0, -1) == [NAME.encode()]


async def test_the_lease_lives_while_the_replica_does(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        async with redis_rig(redis_url) as rig:
            key = keys.lease(CLUSTER, NAME)
            await until(redis_url, lambda batches: bool(client.exists(key)))
            lease = Lease.FromString(client.get(key))
            info = await rig.info()
            assert lease.address == f"127.0.0.1:{rig.replica.port}"
            assert (lease.model, lease.page_size, lease.block_size) == ("tiny", 1, 16)
            assert lease.epoch == info.lease.epoch
            assert lease.tokenizer_digest == info.lease.tokenizer_digest != b""
            assert 0 < client.pttl(key) <= keys.LEASE_TTL_S * 1000
            assert client.zrange(keys.members(CLUSTER), 0, -1) == [NAME.encode()]
            for name in (keys.deltas(CLUSTER, NAME), keys.members(CLUSTER)):
                assert 0 < client.ttl(name) <= keys.LEASE_TTL_S
        assert client.keys() == []


async def test_neither_redis_nor_the_log_holds_a_prompt(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = "the secret of the hat is in the attic"
    async with redis_rig(redis_url) as rig:
        request = GenerateRequest(text=text, sampling=SamplingParams(max_tokens=4))
        await rig.generate(request)
        ids = rig.codec.encode(text)
        await until(redis_url, lambda batches: batches[-1].count > 0)
        with redis.Redis.from_url(redis_url) as client:
            values = b"".join(
                client.dump(key) or b"" for key in client.scan_iter()
            )  # as Redis itself would write it to disk
    for width in ("<u4", "<u8", "<u2"):
        assert np.array(ids[:4], dtype=width).tobytes() not in values
    assert b"attic" not in values
    assert "attic" not in caplog.text
    assert ", ".join(map(str, ids[:3])) not in caplog.text
