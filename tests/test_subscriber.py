"""The reading of streams from a real Redis, and what may come between."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from proto import keys
from proto.redis_client import open_redis
from router.redis_link import RedisLink
from router.subscriber import SILENCE_S, Subscriber
from tests.fakes import FakeClock
from tests.live_router import until

pytestmark = pytest.mark.redis


class Batches:
    """A reader that keeps what it is told."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.ready = False
        self.batches: list[bytes] = []
        self._told = told

    def subscribed(self) -> None:
        self.ready = True

    def batch(self, data: bytes) -> None:
        self.batches.append(data)
        self._told()


class Watched:
    """Redis, and how often it was asked."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.looks = 0
        """At the end of a stream."""
        self.reads = 0
        self.reading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

    async def xrevrange(self, key: str, count: int) -> Any:
        self.looks += 1
        return await self._redis.xrevrange(key, count=count)

    async def xread(self, streams: Any, **options: Any) -> Any:
        self.reads += 1
        self.reading = True
        try:
            return await self._redis.xread(streams, **options)
        finally:
            self.reading = False


class Interrupted:
    """Redis, with something that happens while it is asked for a stream's end, once."""

    def __init__(self, redis: Redis, then: Callable[[], None]) -> None:
        self._redis = redis
        self._then: Callable[[], None] | None = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

    async def xrevrange(self, key: str, count: int) -> Any:
        answer = await self._redis.xrevrange(key, count=count)
        if self._then is not None:
            then, self._then = self._then, None
            then()
        return answer


@asynccontextmanager
async def subscribed(
    redis: Any, link: RedisLink | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber(
        redis,
        cluster="test",
        link=link or RedisLink("deltas"),
        rng=random.Random(0),
        clock=clock,
    )
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def add(redis: Redis, replica: str, batch: bytes) -> Awaitable[Any]:
    return redis.xadd(keys.deltas("test", replica), {keys.BATCH_FIELD: batch})


async def test_a_stream_that_takes_another_ones_place_while_redis_is_asked_is_read(
    redis_url: str,
) -> None:
    old, new = Batches(), Batches()

    def swap() -> None:
        subscriber.remove("old")
        subscriber.add("new", new)

    async with (
        open_redis(redis_url) as redis,
        subscribed(Interrupted(redis, swap)) as subscriber,
    ):
        subscriber.add("old", old)
        await until(lambda: new.ready, 2.0, "the new stream's end is known")
        await add(redis, "new", b"1")
        await until(lambda: new.batches == [b"1"], 2.0)


async def test_nothing_is_asked_while_there_are_no_streams(redis_url: str) -> None:
    first, second = Batches(), Batches()
    async with (
        open_redis(redis_url) as client,
        subscribed(redis := Watched(client)) as subscriber,
    ):
        subscriber.add("first", first)
        await until(lambda: first.ready and redis.reading)
        subscriber.remove("first")
        await until(lambda: not redis.reading, 2.0, "the read that was under way ends")
        asked = (redis.looks, redis.reads)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert (redis.looks, redis.reads) == asked
        subscriber.add("second", second)
        await until(lambda: second.ready)


class Away:
    """A Redis that nobody reaches."""

    async def xrevrange(self, key: str, count: int) -> None:
        raise OSError("nobody is there")


async def test_a_redis_that_nobody_asks_any_more_is_not_said_to_be_away() -> None:
    link = RedisLink("deltas")
    async with subscribed(Away(), link) as subscriber:
        await asyncio.sleep(0)  # so that it waits for the first
        subscriber.add("only", Batches())
        await until(lambda: link.away_s > 0)
        subscriber.remove("only")
        await until(lambda: link.away_s == 0, 3.0)


async def test_a_key_of_another_type_is_set_aside_and_the_others_are_read(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Batches(), Batches()
    link, clock = RedisLink("deltas"), FakeClock()
    async with (
        open_redis(redis_url) as redis,
        subscribed(watched := Watched(redis), link, clock) as subscriber,
    ):
        await redis.set(keys.deltas("test", "bad"), "a string")
        subscriber.add("bad", bad)
        subscriber.add("good", good)
        await until(lambda: good.ready)
        await add(redis, "good", b"1")
        await until(lambda: good.batches == [b"1"])
        assert list(link.set_aside) == [keys.deltas("test", "bad")] and link.up
        looks = watched.looks
        clock.advance(SILENCE_S)
        await until(lambda: watched.looks >= looks + 2, 2.0, "both are looked at again")
        await until(lambda: watched.reading)
        assert caplog.text.count("set aside link=deltas") == 1

        await redis.delete(keys.deltas("test", "bad"))
        clock.advance(SILENCE_S)
        await until(lambda: bad.ready and not link.set_aside, 5.0, "it can be read again")
        await add(redis, "bad", b"2")
        await until(lambda: bad.batches == [b"2"])


async def test_a_stream_that_becomes_a_key_of_another_type_does_not_stop_the_others(
    redis_url: str,
) -> None:
    good, bad = Batches(), Batches()
    async with (
        open_redis(redis_url) as redis,
        subscribed(watched := Watched(redis)) as subscriber,
    ):
        subscriber.add("good", good)
        subscriber.add("bad", bad)
        await until(lambda: good.ready and bad.ready and watched.reading)
        await redis.set(keys.deltas("test", "bad"), "a string")
        reads = watched.reads  # the one under way knows nothing of it
        await until(lambda: watched.reads > reads + 1, 2.0, "another read has met it")
        await add(redis, "good", b"1")
        await until(lambda: good.batches == [b"1"], 2.0)
        await add(redis, "good", b"2")
        await until(lambda: good.batches == [b"1", b"2"], 2.0)


async def test_other_tasks_run_between_one_streams_batches_and_the_next_ones(
    redis_url: str,
) -> None:
    turns: list[int] = []
    turn = 0
    readers = [Batches(lambda: turns.append(turn)) for _ in range(3)]
    async with open_redis(redis_url) as redis:
        subscriber = Subscriber(
            redis, cluster="test", link=RedisLink("deltas"), rng=random.Random(0)
        )
        for number, reader in enumerate(readers):
            subscriber.add(str(number), reader)
        await subscriber._find_ends()
        for _ in range(100):
            for number in range(len(readers)):
                await add(redis, str(number), b"x")

        async def take_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(take_turns())
        await subscriber._read()
        others.cancel()
    assert len(turns) == 300
    assert len({turns[0], turns[100], turns[200]}) == 3
