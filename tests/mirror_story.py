"""A scripted replica and the mirror that reads it, without I/O."""

import asyncio
import random
from collections.abc import AsyncGenerator

import radix_rs
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent
from proto.prefixlb.v1.replica_pb2 import SnapshotResponse
from router.mirror import Mirror, MirrorState
from tests import twins
from tests.fakes import FakeClock

BLOCK_SIZE = 2


class Story:
    """A replica's tree and stream, and the mirror that reads it."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.router = radix_rs.Router(hash_key=bytes(16))
        self.router.add_replica("r", model="m", block_size=BLOCK_SIZE)
        self.blocks = twins.Blocks()
        self.epoch, self.seq = 1, 0
        self.snapshot_gate = asyncio.Event()
        self.snapshot_gate.set()
        self.snapshot_fails = 0
        self.snapshot_lies = 0
        self.sleeps: list[float] = []
        self.clock = FakeClock()
        self.mirror = Mirror(
            "r",
            router=self.router,
            snapshot=self.snapshot,
            rng=self.rng,
            sleep=self.sleep,
            clock=self.clock,
        )

    async def sleep(self, pause_s: float) -> None:
        self.sleeps.append(pause_s)
        await asyncio.sleep(0)

    def change(self) -> bytes:
        """A random change of the tree, as its batch."""
        if self.blocks.parents and self.rng.random() < 0.4:
            leaf = self.rng.choice(self.blocks.leaves())
            return self.batch(self.blocks.evict(leaf, self.rng.randint(1, 3)))
        tokens = self.rng.choices(range(3), k=self.rng.randint(1, 4) * BLOCK_SIZE)
        chain = twins.chain_hashes(tokens, hash_key=bytes(16), model="m", block_size=BLOCK_SIZE)
        return self.batch(self.blocks.store(chain))

    def restart(self) -> bytes:
        self.epoch, self.seq = self.epoch + 1, 0
        self.blocks = twins.Blocks()
        return self.batch()

    def batch(self, events: list[DeltaEvent] | None = None) -> bytes:
        self.seq += 1
        return self._message(events or []).SerializeToString()

    def _message(self, events: list[DeltaEvent]) -> DeltaBatch:
        return DeltaBatch(
            epoch=self.epoch,
            seq=self.seq,
            block_size=BLOCK_SIZE,
            hash_version=radix_rs.HASH_VERSION,
            events=events,
            count=self.blocks.count,
            digest=self.blocks.digest,
        )

    async def snapshot(self) -> AsyncGenerator[SnapshotResponse, None]:
        chunks = [
            SnapshotResponse(batch=self._message([event])) for event in self.blocks.snapshot()
        ]
        chunks.append(SnapshotResponse(batch=self._message([]), last=True))
        for chunk in chunks:
            await self.snapshot_gate.wait()
            if self.snapshot_fails and chunk.last:
                self.snapshot_fails -= 1
                return
            if self.snapshot_lies and chunk.last:
                self.snapshot_lies -= 1
                chunk.batch.digest ^= 1
            yield chunk

    def equal(self) -> bool:
        mirror = self.router.mirror("r")
        return (mirror.epoch, mirror.seq) == (self.epoch, self.seq) and self.router.blocks(
            "r"
        ) == sorted(self.blocks.parents)

    async def settle(self) -> None:
        """Let the mirror do all it can do now."""
        for _ in range(20 + 2 * len(self.blocks.parents)):
            await asyncio.sleep(0)


class Told:
    """`with Told(story):` runs the mirror's task."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def __aenter__(self) -> Story:
        self.task = asyncio.create_task(self.story.mirror.run())
        return self.story

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def kept_waiting(story: Story) -> None:
    """A gap makes the mirror ask for a snapshot, which does not come yet."""
    story.snapshot_gate.clear()
    story.change()
    story.mirror.batch(story.change())
    await story.settle()


async def streaming(story: Story) -> None:
    story.mirror.subscribed()
    await story.settle()
    assert story.mirror.state is MirrorState.STREAMING
