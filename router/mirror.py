"""One replica's mirror: batches in order, and a snapshot where the order broke."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from enum import Enum

from grpc import aio

from proto.prefixlb.v1.replica_pb2 import SnapshotResponse
from radix_rs import Applied, Router, RouterError
from router.backoff import pauses
from router.replica_channel import failure

log = logging.getLogger(__name__)

JITTER_S = 0.1
"""Routers that saw the same gap ask the replica up to this much apart."""

MAX_JITTER_S = 2.0
"""The jitter doubles up to this while one doubt follows another: whatever a stream holds, its
replica is not kept busy with snapshots."""

CALM_S = 10.0
"""Without a doubt for this long, the next one is the first again."""

HELD_OVERHEAD_BYTES = 256
"""Of a batch that is held, besides its own bytes."""

HELD_BYTES = 32 * 2**20
"""Held back in a snapshot at most; the oldest go first, and show as a gap if they were needed."""


class MirrorState(Enum):
    """As in admin.proto."""

    COLD = "cold"  # nothing known, nothing asked for; every match counts 0 tokens
    SNAPSHOT = "snapshot"  # in doubt: a snapshot is asked for; batches are held back
    STREAMING = "streaming"  # equals the tree as of the last batch; the next must be seq + 1


class SnapshotFailed(Exception):
    """The replica's snapshot ended early or did not prove itself."""


class SnapshotUnproven(SnapshotFailed):
    """It has other blocks than its own count and digest say."""


@dataclass
class MirrorTotals:
    """What happened to a mirror since its replica joined."""

    batches: int = 0
    gaps: int = 0
    epochs: int = 0
    mismatches: int = 0
    refused: int = 0
    snapshots: int = 0
    failed_snapshots: int = 0


@dataclass(frozen=True)
class Held:
    """A batch that waits for a snapshot."""

    epoch: int
    seq: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + HELD_OVERHEAD_BYTES


class Mirror:
    """Keeps the index's copy of one replica's tree equal to it.

    Batches come in through `batch`, in the order of the stream; `run` takes the snapshots. Exactly
    one snapshot answers a doubt, however many batches arrive meanwhile. What is known stays in use
    until it comes, except after a new epoch or a long silence: a copy that lacks some batches is
    nearer the truth than none.

    A snapshot outweighs every batch that came before it: of those only the ones that continue it
    count, and only the stream's next batch can raise another doubt. So no batch, whatever it
    claims, is asked about twice.
    """

    def __init__(
        self,
        replica: str,
        *,
        router: Router,
        snapshot: Callable[[], AsyncGenerator[SnapshotResponse, None]],
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = MirrorState.COLD
        self.totals = MirrorTotals()
        self.heard_s = float("-inf")
        """When its stream's last batch came, whatever was in it."""
        self._replica = replica
        self._router = router
        self._snapshot = snapshot
        self._rng = rng
        self._sleep = sleep
        self._clock = clock
        self._wanted = asyncio.Event()
        self._comes = False
        """A snapshot does, or is waited for."""
        self._held: deque[Held] = deque()
        self._held_bytes = 0
        self._last: tuple[int, int, int] | None = None
        """Epoch, seq and a hash of the bytes of the last batch applied since a snapshot."""
        self._followers: list[Callable[[bytes], None]] = []
        self._seen: deque[int] = deque(maxlen=8)
        """Epochs heard of."""
        self._ended: deque[int] = deque(maxlen=16)
        """Epochs that are over; batches of theirs may still be on their way."""

    def subscribed(self) -> None:
        """The stream is read from here on, so a snapshot asked for now misses nothing."""
        if self.state is MirrorState.COLD:
            self._move(MirrorState.SNAPSHOT, "subscribed")

    def batch(self, data: bytes) -> None:
        """The stream's next batch, serialised."""
        self.totals.batches += 1
        self.heard_s = self._clock()
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
        applied = self._apply(data)
        if applied is None:
            return
        self._see(applied.epoch)
        match self.state, applied.outcome:
            case MirrorState.COLD, _:
                self._move(MirrorState.SNAPSHOT, "first good batch")
            case MirrorState.STREAMING, "gap":
                self.totals.gaps += 1
                self._move(MirrorState.SNAPSHOT, f"gap before seq {applied.seq}")
            case MirrorState.STREAMING, "mismatch":
                self._mismatch(applied, "digest mismatch")
            case MirrorState.STREAMING, "stale" if self._contradicts_last(applied, data):
                self._mismatch(applied, "two batches")
            case MirrorState.STREAMING, "epoch" if applied.epoch not in self._ended:
                self._new_epoch(applied.epoch)
        if self.state is MirrorState.SNAPSHOT:  # its load is taken; what it says of blocks waits
            self._hold(Held(applied.epoch, applied.seq, data))

    def epoch_is(self, epoch: int) -> None:
        """The replica says so elsewhere than in its stream, which may be late or cut."""
        current = self._router.mirror(self._replica).epoch
        if self.state is MirrorState.STREAMING and epoch not in (current, *self._ended):
            self._see(epoch)
            self._new_epoch(epoch)

    def forget(self, why: str) -> None:
        """Its replica may be dead: keep nothing of it until it shows life."""
        at = self._router.mirror(self._replica)
        if self._comes or (at.epoch, at.count) == (0, 0):
            return  # what has come of a snapshot goes with it, if it breaks off
        self._router.clear(self._replica)
        if self.state is MirrorState.STREAMING:
            self._move(MirrorState.COLD, why)

    async def run(self) -> None:
        """Take a snapshot whenever one is wanted, until cancelled."""
        jitter_s, doubted_s = JITTER_S, float("-inf")
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            calm = self._clock() - doubted_s >= CALM_S
            jitter_s = JITTER_S if calm else min(2 * jitter_s, MAX_JITTER_S)
            await self._sleep(self._rng.uniform(0, jitter_s))
            await self._take_snapshots()
            self._catch_up()
            doubted_s = self._clock()

    async def _take_snapshots(self) -> None:
        """Until one succeeds."""
        told = ""
        for pause_s in pauses(self._rng):
            try:
                await self._take_snapshot()
                return
            except (aio.AioRpcError, RouterError, SnapshotFailed) as error:
                self.totals.failed_snapshots += 1
                if (why := failure(error)) != told:
                    log.warning("snapshot failed replica=%s why=%r", self._replica, why)
                    told = why
            await self._sleep(pause_s)

    async def _take_snapshot(self) -> None:
        self.totals.snapshots += 1
        before = set(self._seen)
        self._comes = True
        try:
            applied = await apply_snapshot(self._router, self._replica, self._snapshot())
        except SnapshotUnproven:
            self.totals.mismatches += 1
            raise
        finally:
            self._comes = False
        self._last = None
        self._see(applied.epoch)
        # Epochs heard of before the snapshot was asked for, and not its own, are over.
        self._ended.extend(before - {applied.epoch} - set(self._ended))

    def _catch_up(self) -> None:
        """Go on with the held batches that continue the snapshot, and forget the others.

        Some of those may tell of a real hole or a new epoch: then the stream's next batch, a
        heartbeat away at most, does so again.
        """
        held, self._held, self._held_bytes = self._held, deque(), 0
        self._move(MirrorState.STREAMING, f"snapshot, {len(held)} batches held")
        at = self._router.mirror(self._replica)
        seq = at.seq
        for batch in sorted(held, key=lambda batch: batch.seq):  # late ones find their place
            if batch.epoch != at.epoch or batch.seq != seq + 1:
                continue
            seq += 1
            applied = self._apply(batch.data)
            if applied is not None and applied.outcome == "mismatch":
                self._mismatch(applied, "digest mismatch")
                return

    def _apply(self, data: bytes) -> Applied | None:
        """None if it was refused."""
        try:
            applied = self._router.apply(self._replica, data)
        except RouterError as error:
            self._refuse(error)
            return None
        if applied.outcome in ("applied", "mismatch"):
            self._last = (applied.epoch, applied.seq, hash(data))
        return applied

    def _contradicts_last(self, applied: Applied, data: bytes) -> bool:
        """Whether it has the number of the last one and other bytes: one of them is forged."""
        if self._last is None:
            return False
        epoch, seq, data_hash = self._last
        return (applied.epoch, applied.seq) == (epoch, seq) and hash(data) != data_hash

    def _see(self, epoch: int) -> None:
        if epoch not in self._seen:
            self._seen.append(epoch)

    def _mismatch(self, applied: Applied, what: str) -> None:
        self.totals.mismatches += 1
        self._move(MirrorState.SNAPSHOT, f"{what} at seq {applied.seq}")

    def _new_epoch(self, epoch: int) -> None:
        self.totals.epochs += 1
        self._router.clear(self._replica)
        self._move(MirrorState.SNAPSHOT, f"new epoch {epoch:016x}")

    def _refuse(self, error: RouterError) -> None:
        """A batch that cannot be read or does not fit: whatever follows it proves nothing."""
        self.totals.refused += 1
        if self.state is MirrorState.STREAMING:
            log.error("batch refused replica=%s why=%r", self._replica, str(error))
            self._router.clear(self._replica)
            self._move(MirrorState.COLD, "batch refused")

    def _hold(self, batch: Held) -> None:
        self._held.append(batch)
        self._held_bytes += batch.size_bytes
        while self._held_bytes > HELD_BYTES:
            self._held_bytes -= self._held.popleft().size_bytes

    def _move(self, state: MirrorState, why: str) -> None:
        log.info(
            "mirror moves replica=%s from=%s to=%s why=%r",
            self._replica,
            self.state.value,
            state.value,
            why,
        )
        self.state = state
        if state is MirrorState.SNAPSHOT:
            self._wanted.set()


async def apply_snapshot(
    router: Router, replica: str, chunks: AsyncGenerator[SnapshotResponse, None]
) -> Applied:
    """Let it replace what `router` has of `replica`. Raises SnapshotFailed if that proves nothing.

    What was there goes with the first chunk that comes.
    """
    cleared = False
    async with aclosing(chunks):
        async for chunk in chunks:
            if not cleared:
                router.clear(replica)
                cleared = True
            applied = router.apply_snapshot(replica, chunk.batch.SerializeToString(), chunk.last)
            if not chunk.last:
                continue
            if applied.outcome != "applied":
                raise SnapshotUnproven(f"its digest does not prove it: {applied.outcome}")
            return applied
    raise SnapshotFailed("it ended before its last chunk")
