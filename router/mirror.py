"""One replica's mirror: batches in order, and a snapshot where the order broke."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from grpc import aio

from proto.prefixlb.v1.replica_pb2 import SnapshotResponse
from radix_rs import Router, RouterError
from router.backoff import pauses
from router.replica_state import failure

log = logging.getLogger(__name__)

JITTER_S = 0.1
"""Routers that saw the same gap ask the replica up to this much apart."""

HELD_BYTES = 32 * 2**20
"""Held back in a snapshot at most; the oldest go first, and show as a gap if they were needed."""


class SyncState(Enum):
    COLD = "cold"  # nothing known, nothing asked for; every match counts 0 tokens
    SNAPSHOT = "snapshot"  # in doubt: a snapshot is asked for; batches are held back
    STREAMING = "streaming"  # equals the tree as of the last batch; the next must be seq + 1


class SnapshotFailed(Exception):
    """The replica's snapshot ended early or did not prove itself."""


@dataclass
class SyncTotals:
    """What happened to a mirror since its replica joined."""

    batches: int = 0
    gaps: int = 0
    epochs: int = 0
    mismatches: int = 0
    refused: int = 0
    snapshots: int = 0
    failed_snapshots: int = 0


class Mirror:
    """Keeps the index's copy of one replica's tree equal to it.

    Batches come in through `batch`, in the order of the stream; `run` takes the snapshots. Exactly
    one snapshot answers a doubt, however many batches arrive meanwhile. What is known stays in use
    until it comes, except after a new epoch: a copy that lacks some batches is nearer the truth
    than none.
    """

    def __init__(
        self,
        replica: str,
        *,
        router: Router,
        snapshot: Callable[[], AsyncIterator[SnapshotResponse]],
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.state = SyncState.COLD
        self.totals = SyncTotals()
        self._replica = replica
        self._router = router
        self._snapshot = snapshot
        self._rng = rng
        self._sleep = sleep
        self._wanted = asyncio.Event()
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._followers: list[Callable[[bytes], None]] = []
        self._seen: deque[int] = deque(maxlen=8)
        """Epochs heard of."""
        self._ended: deque[int] = deque(maxlen=16)
        """Epochs that are over; batches of theirs may still be on their way."""

    def subscribed(self) -> None:
        """The stream is read from here on, so a snapshot asked for now misses nothing."""
        if self.state is SyncState.COLD:
            self._move(SyncState.SNAPSHOT, "subscribed")

    def batch(self, data: bytes) -> None:
        """The stream's next batch, serialised."""
        self.totals.batches += 1
        self._take(data)
        for follower in self._followers:
            follower(data)

    @contextmanager
    def followed(self, follower: Callable[[bytes], None]) -> Iterator[None]:
        """Within the block `follower` gets each batch that comes, after the mirror has it."""
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)

    def _take(self, data: bytes) -> None:
        try:
            applied = self._router.apply(self._replica, data)
        except RouterError as error:
            self._refuse(error)
            return
        self._see(applied.epoch)
        match self.state, applied.outcome:
            case SyncState.COLD, _:
                self._move(SyncState.SNAPSHOT, "first good batch")
            case SyncState.STREAMING, "gap":
                self.totals.gaps += 1
                self._move(SyncState.SNAPSHOT, f"gap before seq {applied.seq}")
            case SyncState.STREAMING, "mismatch":
                self.totals.mismatches += 1
                self._move(SyncState.SNAPSHOT, f"digest mismatch at seq {applied.seq}")
            case SyncState.STREAMING, "epoch" if applied.epoch not in self._ended:
                self._new_epoch(applied.epoch)
        if self.state is SyncState.SNAPSHOT:
            self._hold(data)  # applied for its load; what it says of blocks waits

    def epoch_is(self, epoch: int) -> None:
        """The replica says so elsewhere than in its stream, which may be late or cut."""
        current = self._router.mirror(self._replica).epoch
        if self.state is SyncState.STREAMING and epoch not in (current, *self._ended):
            self._see(epoch)
            self._new_epoch(epoch)

    async def run(self) -> None:
        """Take a snapshot whenever one is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._sleep(self._rng.uniform(0, JITTER_S))
            for pause_s in pauses(self._rng):
                try:
                    await self._take_snapshot()
                    break
                except (aio.AioRpcError, RouterError, SnapshotFailed) as error:
                    self.totals.failed_snapshots += 1
                    log.warning(
                        "snapshot failed replica=%s attempt=%d error=%s",
                        self._replica,
                        self.totals.snapshots,
                        failure(error),
                    )
                await self._sleep(pause_s)
            self._catch_up()

    async def _take_snapshot(self) -> None:
        self.totals.snapshots += 1
        before = set(self._seen)
        cleared = False
        async for chunk in self._snapshot():
            if not cleared:
                self._router.clear(self._replica)
                cleared = True
            applied = self._router.apply_snapshot(
                self._replica, chunk.batch.SerializeToString(), chunk.last
            )
            if not chunk.last:
                continue
            if applied.outcome != "applied":
                self.totals.mismatches += 1
                raise SnapshotFailed(f"its digest does not prove it: {applied.outcome}")
            self._see(applied.epoch)
            # Epochs heard of before the snapshot was asked for, and not its own, are over.
            self._ended.extend(before - {applied.epoch} - set(self._ended))
            return
        raise SnapshotFailed("it ended before its last chunk")

    def _catch_up(self) -> None:
        """Go on with the held batches: older ones are stale, a hole among them is a new doubt."""
        held, self._held, self._held_bytes = self._held, deque(), 0
        self._move(SyncState.STREAMING, f"snapshot, {len(held)} batches held")
        for data in held:
            self._take(data)

    def _see(self, epoch: int) -> None:
        if epoch not in self._seen:
            self._seen.append(epoch)

    def _new_epoch(self, epoch: int) -> None:
        self.totals.epochs += 1
        self._router.clear(self._replica)
        self._move(SyncState.SNAPSHOT, f"new epoch {epoch:016x}")

    def _refuse(self, error: RouterError) -> None:
        """A batch that cannot be read or does not fit: whatever follows it proves nothing."""
        self.totals.refused += 1
        if self.state is SyncState.STREAMING:
            self._router.clear(self._replica)
            self._move(SyncState.COLD, f"batch refused: {error}")

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        while self._held_bytes > HELD_BYTES:
            self._held_bytes -= len(self._held.popleft())

    def _move(self, state: SyncState, why: str) -> None:
        log.info(
            "mirror moves replica=%s from=%s to=%s why=%r",
            self._replica,
            self.state.value,
            state.value,
            why,
        )
        self.state = state
        if state is SyncState.SNAPSHOT:
            self._wanted.set()
