"""A replica's publisher and a router's mirror as plain sets: plainly right, and slow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proto.prefixlb.v1 import delta_pb2
from radix_rs import HASH_VERSION

BLOCK_SIZE = 4
MASK = 2**64 - 1


def digest(blocks: Iterable[int]) -> int:
    return sum(blocks) & MASK


def matched(blocks: set[int], chain: Sequence[int]) -> int:
    """Leading blocks of `chain` that are in `blocks`."""
    for index, block in enumerate(chain):
        if block not in blocks:
            return index
    return len(chain)


@dataclass
class Publisher:
    """A replica's blocks with their parents, and the batches that say how they change."""

    epoch: int
    seq: int = 0
    parents: dict[int, int] = field(default_factory=dict)

    def batch(self, *events: delta_pb2.DeltaEvent) -> delta_pb2.DeltaBatch:
        """The next batch, to be made after the change it tells of."""
        self.seq += 1
        return self._header(events)

    def snapshot(self, blocks_per_chunk: int) -> list[delta_pb2.DeltaBatch]:
        """At least one chunk; blocks come after their parents because dicts keep their order."""
        runs = [self._run(parent, [block]) for block, parent in self.parents.items()]
        starts = range(0, max(len(runs), 1), blocks_per_chunk)
        return [self._header(runs[start : start + blocks_per_chunk]) for start in starts]

    def store(self, chain: Sequence[int]) -> delta_pb2.DeltaEvent:
        """Cache `chain`; what was cached is not said again, except its last block."""
        held = matched(set(self.parents), chain)
        start = max(held - 1, 0)
        parent = chain[start - 1] if start else 0
        for before, block in zip([0, *chain], chain, strict=False):
            self.parents.setdefault(block, before)
        return self._run(parent, chain[start:])

    def evict(self, leaf: int, count: int) -> delta_pb2.DeltaEvent:
        """Drop `leaf` and up to `count - 1` blocks before it, up to one that is still needed."""
        block, dropped = leaf, list[int]()
        while len(dropped) < count and block in self.parents.keys() - self.parents.values():
            dropped.append(block)
            block = self.parents.pop(block)
        removed = delta_pb2.Removed(last=leaf, count=len(dropped))
        if len(dropped) > 1:
            removed.first, removed.digest = dropped[-1], digest(dropped)
        return delta_pb2.DeltaEvent(removed=removed)

    def clear(self) -> delta_pb2.DeltaEvent:
        self.parents.clear()
        return delta_pb2.DeltaEvent(cleared=delta_pb2.Cleared())

    def leaves(self) -> list[int]:
        return sorted(set(self.parents) - set(self.parents.values()))

    def _header(self, events: Iterable[delta_pb2.DeltaEvent]) -> delta_pb2.DeltaBatch:
        return delta_pb2.DeltaBatch(
            epoch=self.epoch,
            seq=self.seq,
            block_size=BLOCK_SIZE,
            hash_version=HASH_VERSION,
            events=events,
            count=len(self.parents),
            digest=digest(self.parents),
        )

    @staticmethod
    def _run(parent: int, hashes: Sequence[int]) -> delta_pb2.DeltaEvent:
        return delta_pb2.DeltaEvent(stored=delta_pb2.Stored(parent=parent, hashes=hashes))


@dataclass
class MirrorModel:
    """What a router knows of one replica. `parents` are facts about hashes: they outlive blocks."""

    epoch: int = 0
    seq: int = 0
    blocks: set[int] = field(default_factory=set)
    parents: dict[int, int] = field(default_factory=dict)

    def apply(self, batch: delta_pb2.DeltaBatch) -> str:
        if batch.epoch != self.epoch:
            return "epoch"
        if batch.seq != self.seq + 1:
            return "stale" if batch.seq <= self.seq else "gap"
        self.seq = batch.seq
        return self.apply_events(batch)

    def apply_events(self, batch: delta_pb2.DeltaBatch) -> str:
        for event in batch.events:
            match event.WhichOneof("event"):
                case "stored":
                    parents = [event.stored.parent, *event.stored.hashes]
                    for parent, block in zip(parents, event.stored.hashes, strict=False):
                        self.parents[block] = parent
                        self.blocks.add(block)
                case "removed":
                    block = event.removed.last
                    for _ in range(event.removed.count):
                        self.blocks.discard(block)
                        block = self.parents.get(block, 0)
                case "cleared":
                    self.blocks.clear()
        same = (batch.count, batch.digest) == (len(self.blocks), digest(self.blocks))
        return "applied" if same else "mismatch"

    def clear(self) -> None:
        self.epoch, self.seq = 0, 0
        self.blocks.clear()
