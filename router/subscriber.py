"""From Redis streams to mirrors: one connection reads the deltas of all replicas."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from proto import keys
from proto.redis_client import reply_timeout
from router.backoff import pauses
from router.redis_link import RETRY_S, RedisLink

log = logging.getLogger(__name__)

BLOCK_S = 0.25
"""A read waits this long for news; a stream added meanwhile is read from the next one on."""

READ_BATCHES = 256
"""Batches taken from one stream in one read, so that a long backlog does not hold up requests."""

SILENCE_S = 2.5 * keys.LEASE_PERIOD_S
"""A stream without even a heartbeat for this long may have begun anew, with ids below ours."""

BEGIN = "0-0"

Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes]]]
"""Ids and fields."""


class Reader(Protocol):
    """What takes the batches of one stream; see Mirror."""

    def subscribed(self) -> None: ...
    def batch(self, data: bytes) -> None: ...


@dataclass
class Stream:
    """Where the reading of one replica's stream stands."""

    reader: Reader
    cursor: str | None = None
    """Id of the last batch read; None: not known yet where to begin."""
    heard_s: float = 0.0
    """When the last batch came, or the cursor was last looked at."""
    since_s: float = 0.0
    """When the last batch came, or the reader was added."""
    bad: str = ""
    """Why Redis cannot give it, such as WRONGTYPE; looked at again after SILENCE_S."""
    lag_s: float = 0.0
    """From Redis' time stamp on the last batch to its arrival here."""


class Subscriber:
    """Reads every added replica's stream from its present end on, over any outage of Redis."""

    def __init__(
        self,
        redis: Redis,
        *,
        cluster: str,
        link: RedisLink,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._cluster = cluster
        self._link = link
        self._rng = rng
        self._clock = clock
        self._wall_clock = wall_clock
        self._streams: dict[str, Stream] = {}
        """By key in Redis."""
        self._changed = asyncio.Event()

    def add(self, replica: str, reader: Reader) -> None:
        """Begin at the stream's end, once Redis says where that is; then `reader.subscribed()`."""
        self._streams[keys.deltas(self._cluster, replica)] = Stream(reader, since_s=self._clock())
        self._changed.set()

    def remove(self, replica: str) -> None:
        """No batch of it reaches its reader any more."""
        self._streams.pop(keys.deltas(self._cluster, replica), None)

    def stream(self, replica: str) -> Stream:
        """How the reading of an added replica's stream goes."""
        return self._streams[keys.deltas(self._cluster, replica)]

    async def run(self) -> None:
        """Read until cancelled."""
        retry = pauses(self._rng, most_s=RETRY_S)
        while True:
            try:
                await self._find_ends()
                await self._read()
            except (RedisError, OSError) as error:
                self._link.failed(error)
                for stream in self._streams.values():
                    stream.heard_s = float("-inf")  # another Redis may answer next
                await asyncio.sleep(next(retry))
            else:
                self._link.answered()
                retry = pauses(self._rng, most_s=RETRY_S)

    async def _find_ends(self) -> None:
        """Give new streams their cursor, and go back to the beginning of those that began anew."""
        now = self._clock()
        for key, stream in list(self._streams.items()):
            settled = stream.cursor is not None or stream.bad
            if settled and now - stream.heard_s < SILENCE_S:
                continue
            stream.heard_s = now
            try:
                async with reply_timeout():
                    last = cast(Entries, await self._redis.xrevrange(key, count=1))
            except ResponseError as error:  # of this key alone
                stream.bad = str(error)
                continue
            stream.bad = ""
            end = last[0][0].decode() if last else BEGIN
            if stream.cursor is None:
                stream.cursor = end
                stream.reader.subscribed()
            elif _order(end) < _order(stream.cursor):
                log.warning("stream began anew stream=%s cursor=%s end=%s", key, stream.cursor, end)
                stream.cursor = BEGIN
        self._link.sets_aside({key: each.bad for key, each in self._streams.items() if each.bad})

    async def _read(self) -> None:
        reading = {
            key: stream
            for key, stream in self._streams.items()
            if stream.cursor is not None and not stream.bad
        }
        if not reading:
            await self._wait_for_streams()
            return
        async with reply_timeout():
            answer = await self._redis.xread(
                {key: stream.cursor or BEGIN for key, stream in reading.items()},
                count=READ_BATCHES,
                block=int(BLOCK_S * 1000),
            )
        now, wall = self._clock(), self._wall_clock()
        for name, batches in cast(list[tuple[bytes, Entries]], answer):
            await asyncio.sleep(0)  # requests go on between one stream's batches and the next's
            key = name.decode()
            for identifier, fields in batches:
                stream = reading[key]
                if self._streams.get(key) is not stream:
                    break  # removed since, perhaps added again
                stream.cursor = identifier.decode()
                stream.heard_s = stream.since_s = now
                stream.lag_s = max(0.0, wall - int(identifier.split(b"-")[0]) / 1000)
                stream.reader.batch(fields.get(keys.BATCH_FIELD, b""))

    async def _wait_for_streams(self) -> None:
        """Until one is added; those that are there are bad, or were added during a look at ends."""
        if not self._streams:
            self._link.rests()
        with suppress(TimeoutError):
            async with asyncio.timeout(BLOCK_S if self._streams else None):
                await self._changed.wait()
        self._changed.clear()  # only now: whatever set it is looked at next


def _order(identifier: str) -> tuple[int, int]:
    milliseconds, number = identifier.split("-")
    return int(milliseconds), int(number)
