"""What the Python tree core tells the outside: blocks that came and went, count and digest."""

from collections.abc import Sequence
from dataclasses import dataclass

from proto.prefixlb.v1 import delta_pb2

_MASK = 2**64 - 1
NO_PARENT = 0


@dataclass(frozen=True)
class Deltas:
    events: bytes
    stored: int
    removed: int
    count: int
    digest: int


class BlockLog:
    """Events since the last drain; count and digest of all blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0
        self._events: list[delta_pb2.DeltaEvent] = []
        # The block before those of a removal that ends the events: its own removal extends that.
        self._before_removed: int | None = None
        self._stored = 0
        self._removed = 0

    def store(self, parent: int | None, hashes: Sequence[int]) -> None:
        """`hashes` follow each other, the first follows `parent`."""
        if not hashes:
            return
        self._stored += len(hashes)
        self.count += len(hashes)
        self.digest = (self.digest + sum(hashes)) & _MASK
        push_run(self._events, parent, hashes)

    def remove(self, parent: int | None, hashes: Sequence[int]) -> None:
        """`hashes` follow each other, the first follows `parent`; nothing follows the last."""
        if not hashes:
            return
        digest = sum(hashes)
        self._removed += len(hashes)
        self.count -= len(hashes)
        self.digest = (self.digest - digest) & _MASK
        last = self._events[-1] if self._events else None
        if last is not None and last.HasField("removed") and self._before_removed == hashes[-1]:
            removed = last.removed
            digest += removed.last if removed.count == 1 else removed.digest
            removed.count += len(hashes)
        else:
            event = delta_pb2.DeltaEvent()
            removed = event.removed
            removed.last = hashes[-1]
            removed.count = len(hashes)
            self._events.append(event)
        if removed.count > 1:
            removed.first = hashes[0]
            removed.digest = digest & _MASK
        self._before_removed = parent

    def clear(self) -> None:
        """All blocks are gone; so is what was said of them before."""
        self.count = self.digest = self._stored = self._removed = 0
        event = delta_pb2.DeltaEvent()
        event.cleared.SetInParent()
        self._events = [event]

    def drain(self) -> Deltas | None:
        if not self._events:
            return None
        events = encode(self._events)
        deltas = Deltas(events, self._stored, self._removed, self.count, self.digest)
        self._events = []
        self._stored = self._removed = 0
        return deltas


def push_run(events: list[delta_pb2.DeltaEvent], parent: int | None, hashes: Sequence[int]) -> None:
    """Append a run, or extend the last event where the run continues it."""
    last = events[-1] if events else None
    if last is not None and last.HasField("stored") and last.stored.hashes[-1] == parent:
        last.stored.hashes.extend(hashes)
        return
    event = delta_pb2.DeltaEvent()
    event.stored.parent = NO_PARENT if parent is None else parent
    event.stored.hashes.extend(hashes)
    events.append(event)


def encode(events: Sequence[delta_pb2.DeltaEvent]) -> bytes:
    """As they stand in a serialised DeltaBatch."""
    return delta_pb2.DeltaBatch(events=events).SerializeToString()
