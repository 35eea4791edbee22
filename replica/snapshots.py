"""Snapshots for routers that may all ask at once: few are sent at a time, of fewer copies."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from grpc import aio

from proto.errors import Overloaded, StalledReader
from proto.prefixlb.v1 import delta_pb2, replica_pb2
from replica.engine import Snapshot
from replica.engine_thread import EngineThread
from replica.py_tree.chain import HASH_VERSION

MAX_SENT = 8
"""At a time; as many copies of the tree are kept at most, and the newest."""

MAX_WAITING = 64
"""Beside those that are sent; more are refused. A router asks again after a pause."""

WRITE_STALL_S = 5.0
"""A reader that takes no chunk, half a megabyte at most, for this long makes way for others."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A tree as of one position, ready to be sent any number of times."""

    number: int
    messages: list[replica_pb2.SnapshotResponse]


class Snapshots:
    """Belongs to the event loop. The engine makes one copy between two steps, however many ask.

    A copy is for all who asked before it was begun: deltas from then on continue it.
    """

    def __init__(
        self,
        engine: EngineThread,
        *,
        block_size: int,
        max_sent: int = MAX_SENT,
        max_waiting: int = MAX_WAITING,
        write_stall_s: float = WRITE_STALL_S,
    ) -> None:
        self._engine = engine
        self._block_size = block_size
        self._max_calls = max_sent + max_waiting
        self._write_stall_s = write_stall_s
        self._calls = 0
        self._sending = asyncio.Semaphore(max_sent)
        self._begun = 0
        self._making: asyncio.Task[None] | None = None
        self._newest: Copy | None = None

    async def send(
        self, write: Callable[[replica_pb2.SnapshotResponse], Awaitable[object]]
    ) -> None:
        """Raises Overloaded, StalledReader, or Unavailable if the engine has ended."""
        if self._calls == self._max_calls:
            raise Overloaded(
                f"{self._calls} snapshots are being sent or waited for, at most"
                f" {self._max_calls} may be: ask again after a pause"
            )
        self._calls += 1
        asked = self._begun
        try:
            async with self._sending:
                for message in (await self._begun_after(asked)).messages:
                    await self._write_in_time(write, message)
        finally:
            self._calls -= 1
            if not self._calls:
                self._newest = None

    async def _begun_after(self, number: int) -> Copy:
        """A copy that was begun after copy `number`."""
        while self._newest is None or self._newest.number <= number:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(_forget_failure)
            # Whoever leaves leaves it to the others: or each would have the engine make one more.
            await asyncio.shield(self._making)
        return self._newest

    async def _make(self) -> None:
        self._begun += 1
        number = self._begun
        try:
            snapshot = await self._engine.call(self._engine.engine.snapshot)
            messages = await asyncio.to_thread(list, self._messages(snapshot))
            if self._calls:
                self._newest = Copy(number, messages)
        finally:
            self._making = None

    def _messages(self, snapshot: Snapshot) -> Iterator[replica_pb2.SnapshotResponse]:
        position = snapshot.position
        events: bytes | None = next(snapshot.chunks, b"")
        while events is not None:
            following = next(snapshot.chunks, None)
            batch = delta_pb2.DeltaBatch(
                epoch=position.epoch,
                seq=position.seq,
                block_size=self._block_size,
                hash_version=HASH_VERSION,
            )
            batch.MergeFromString(events)
            if following is None:
                batch.count, batch.digest = position.count, position.digest
                batch.load.CopyFrom(position.load)
            yield replica_pb2.SnapshotResponse(batch=batch, last=following is None)
            events = following

    async def _write_in_time(
        self,
        write: Callable[[replica_pb2.SnapshotResponse], Awaitable[object]],
        message: replica_pb2.SnapshotResponse,
    ) -> None:
        try:
            async with asyncio.timeout(self._write_stall_s):
                await write(message)
        except TimeoutError as error:
            raise StalledReader(
                f"no chunk of the snapshot was read for {self._write_stall_s:g} s"
            ) from error
        except aio.InternalError as error:  # the reader has gone, and we are not told yet
            raise asyncio.CancelledError from error


def _forget_failure(making: asyncio.Task[None]) -> None:
    """Who waits for it has heard of it; if nobody does, nobody needs to."""
    if not making.cancelled():
        making.exception()
