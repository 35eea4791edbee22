"""What the tree did and Redis does not have yet: epoch, seq, and a bounded backlog."""

import secrets
import threading
from collections import deque
from dataclasses import dataclass

from proto.prefixlb.v1 import delta_pb2
from replica.py_tree.chain import HASH_VERSION
from replica.tree_core import Deltas


@dataclass(frozen=True, slots=True)
class Batch:
    epoch: int
    seq: int
    payload: bytes
    """Serialised DeltaBatch."""


@dataclass(frozen=True, slots=True)
class Position:
    """The tree after a batch: a mirror that has applied all up to `seq` has the same numbers."""

    epoch: int
    seq: int
    count: int
    digest: int
    load: delta_pb2.Load
    """The newest; shared, so not to be changed."""


class DeltaLog:
    """Between the engine, which appends and never waits, and the publisher, which sends.

    A batch gets its seq when it is sealed: to be sent, or to say where a snapshot stands.
    """

    def __init__(self, *, block_size: int, max_backlog_bytes: int) -> None:
        self._block_size = block_size
        self._max_backlog_bytes = max_backlog_bytes
        self._changed = threading.Condition()
        self._sealed: deque[Batch] = deque()
        self._events: list[bytes] = []
        self._backlog_bytes = 0
        self._load = delta_pb2.Load()
        self._draining = False
        self._urgent = True  # the first batch tells that this epoch exists
        self._count = 0
        self._digest = 0
        self._begin_epoch()

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, seq) of the newest sealed batch; seq 0 before the first."""
        with self._changed:
            return self._epoch, self._seq

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def append(self, deltas: Deltas) -> int:
        """The tree changed. A backlog too long is dropped, and the next seq shows the gap.

        Returns the bytes dropped.
        """
        with self._changed:
            self._events.append(deltas.events)
            self._backlog_bytes += len(deltas.events)
            self._count, self._digest = deltas.count, deltas.digest
            self._wake()
            if self._backlog_bytes <= self._max_backlog_bytes:
                return 0
            self._seq += 1
            return self._drop()

    @property
    def is_behind(self) -> bool:
        """Half of what the backlog may hold is waiting: what helps only now is better left out."""
        return 2 * self._backlog_bytes > self._max_backlog_bytes

    def announce(self, events: bytes) -> None:
        """Prompts that came or were dropped; count and digest stay."""
        with self._changed:
            self._events.append(events)
            self._backlog_bytes += len(events)
            self._wake()

    def report(self, load: delta_pb2.Load, *, urgent: bool) -> None:
        """The newest load; `urgent`: not to wait for the next change or heartbeat."""
        with self._changed:
            load.draining = self._draining
            self._load = load
            if urgent:
                self._wake()

    def drain(self) -> None:
        """Say in every load from now on that nothing new is taken."""
        with self._changed:
            load = delta_pb2.Load()
            load.CopyFrom(self._load)  # the old one may be in use
            load.draining = self._draining = True
            self._load = load
            self._wake()

    def wake(self) -> None:
        """Let `wait` return."""
        with self._changed:
            self._wake()

    def new_epoch(self) -> int:
        """The tree begins a new life, empty. Returns its epoch."""
        with self._changed:
            self._drop()
            self._begin_epoch()
            self._count = self._digest = 0
            self._wake()
            return self._epoch

    def seal(self) -> Position:
        """Close the pending batch, if there is one. Returns where all appended so far stands."""
        with self._changed:
            if self._events or self._seq == 0:
                self._seal()
            return Position(self._epoch, self._seq, self._count, self._digest, self._load)

    def take(self, *, heartbeat: bool) -> Batch | None:
        """The oldest batch, left in place until `sent`. With `heartbeat` there always is one."""
        with self._changed:
            if not self._sealed:
                if not (self._has_news() or heartbeat):
                    return None
                self._seal()
            return self._sealed[0]

    def sent(self, batch: Batch) -> None:
        """Redis has `batch`; unless it was dropped meanwhile, the next one is the oldest."""
        with self._changed:
            if self._sealed and self._sealed[0] is batch:
                self._sealed.popleft()
                self._backlog_bytes -= len(batch.payload)

    def wait(self, timeout_s: float) -> bool:
        """Whether there is something to send before `timeout_s` have passed."""
        with self._changed:
            return self._changed.wait_for(self._has_news, timeout_s)

    def _has_news(self) -> bool:
        return bool(self._sealed or self._events or self._urgent)

    def _wake(self) -> None:
        self._urgent = True
        self._changed.notify()

    def _begin_epoch(self) -> None:
        self._epoch = secrets.randbits(64) or 1
        self._seq = 0

    def _drop(self) -> int:
        dropped = self._backlog_bytes
        self._sealed.clear()
        self._events.clear()
        self._backlog_bytes = 0
        return dropped

    def _seal(self) -> None:
        self._seq += 1
        self._urgent = False
        header = delta_pb2.DeltaBatch(
            epoch=self._epoch,
            seq=self._seq,
            block_size=self._block_size,
            hash_version=HASH_VERSION,
            load=self._load,
            count=self._count,
            digest=self._digest,
        ).SerializeToString()
        pending = sum(map(len, self._events))
        batch = Batch(self._epoch, self._seq, b"".join((header, *self._events)))
        self._events.clear()
        self._sealed.append(batch)
        self._backlog_bytes += len(batch.payload) - pending
