"""A second cluster name in Redis whose delta streams are the first one's, mangled on the way."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from proto import keys
from proto.redis_client import open_redis

LEASES_PERIOD_S = 0.1
READ_MS = 20


@dataclass
class Mangle:
    """What happens to a batch, each with its own probability."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    """Sent after those that come in the next moment."""
    late_s: float = 0.05
    delay_s: float = 0.0
    """Of every batch."""


@dataclass
class Relay:
    """Copies leases and batches of `replicas` from cluster `source` to cluster `target`."""

    redis_url: str
    source: str
    target: str
    replicas: Sequence[str]
    rng: random.Random
    mangle: Mangle = field(default_factory=Mangle)
    touched: int = 0
    """Batches that did not arrive once, in order and at once: a fault that touches none is none."""

    async def run(self) -> None:
        """Until cancelled, over any outage of Redis."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forever(self._copy_leases, LEASES_PERIOD_S))
            for replica in self.replicas:
                tasks.create_task(self._forever(_Stream(self, replica).copy, 0.0))

    async def _forever(self, copy: Callable[[Any], Any], pause_s: float) -> None:
        async with open_redis(self.redis_url) as redis:
            while True:
                try:
                    await copy(redis)
                    await asyncio.sleep(pause_s)
                except (RedisError, OSError):
                    await asyncio.sleep(0.1)

    async def _copy_leases(self, redis: Any) -> None:
        for replica in self.replicas:
            held = keys.lease(self.source, replica)
            lease, left_ms = await redis.get(held), await redis.pttl(held)
            if lease is not None and left_ms > 0:
                await redis.set(keys.lease(self.target, replica), lease, px=left_ms)
                await redis.zadd(keys.members(self.target), {replica: 0})
            else:
                await redis.delete(keys.lease(self.target, replica))


class _Stream:
    """One replica's batches; each life of the process copies from the stream's end on."""

    def __init__(self, relay: Relay, replica: str) -> None:
        self._relay = relay
        self._source = keys.deltas(relay.source, replica)
        self._target = keys.deltas(relay.target, replica)
        self._cursor = "$"
        self._read = 0
        self._sent_in_time = 0
        """Number of the last batch that was not held back, as they were read."""
        self._late: set[asyncio.Task[None]] = set()

    async def copy(self, redis: Any) -> None:
        if self._cursor == "$":  # "$" in each read would miss what came between two reads
            last = await redis.xrevrange(self._source, count=1)
            self._cursor = last[0][0].decode() if last else "0-0"
        read = await redis.xread({self._source: self._cursor}, count=64, block=READ_MS)
        mangle, rng = self._relay.mangle, self._relay.rng
        for _, entries in read:
            if mangle.delay_s:
                await asyncio.sleep(mangle.delay_s)
                self._relay.touched += len(entries)
            for identifier, fields in entries:
                self._cursor = identifier.decode()
                self._read += 1
                batch = fields[keys.BATCH_FIELD]
                kind = rng.random()
                if kind < mangle.drop:
                    self._relay.touched += 1
                elif kind < mangle.drop + mangle.double:
                    self._relay.touched += 1
                    await self._send(redis, batch)
                    await self._send(redis, batch)
                elif kind < mangle.drop + mangle.double + mangle.late:
                    task = asyncio.create_task(
                        self._send_late(redis, batch, self._read, mangle.late_s)
                    )
                    self._late.add(task)
                    task.add_done_callback(self._late.discard)
                else:
                    await self._send(redis, batch)
                    self._sent_in_time = self._read

    async def _send_late(self, redis: Any, batch: bytes, number: int, late_s: float) -> None:
        await asyncio.sleep(late_s)
        self._relay.touched += self._sent_in_time > number  # else it is still in order
        with suppress(RedisError, OSError):
            await self._send(redis, batch)

    async def _send(self, redis: Any, batch: bytes) -> None:
        async with redis.pipeline(transaction=False) as pipe:
            pipe.xadd(self._target, {keys.BATCH_FIELD: batch}, maxlen=keys.STREAM_MAX_BATCHES)
            pipe.expire(self._target, keys.LEASE_TTL_S)
            await pipe.execute()
