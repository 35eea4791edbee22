"""A reader of deltas as a third party would write it from the comments of delta.proto.

Protobuf's encoding is read here, by hand. Nothing of the
product is used.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from tests.twins import MASK

MOST_LOG2 = 31


class Refused(Exception):
    """No batch, or not of this reader's kind."""


class Batch(NamedTuple):
    epoch: int
    seq: int
    count: int
    digest: int
    events: list[bytes]


class SpecReader:
    """One replica's blocks as a set, and where it stands in the stream."""

    def __init__(self, *, block_size: int, hash_version: int) -> None:
        self._block_size, self._hash_version = block_size, hash_version
        self._before: dict[int, int] = {}
        """The block before each one ever heard of."""
        self.blocks: set[int] = set()
        self.expected: dict[int, tuple[int, list[int]]] = {}
        """Start and hashes of the prompts announced that have not ended, by id."""
        self.epoch = self.seq = 0
        self._last = b""
        """The batch applied last, if one was since the snapshot."""
        self._heard: set[int] = set()
        self._over: set[int] = set()
        """Epochs heard of before a snapshot of another was asked for."""

    def snapshot(self, chunks: list[bytes]) -> str:
        self.blocks.clear()
        self.expected.clear()
        for chunk in chunks:
            batch = self._read(chunk)
            self._apply(batch)
        self.epoch, self.seq, self._last = batch.epoch, batch.seq, b""
        self._over |= self._heard - {batch.epoch}
        self._heard.add(batch.epoch)
        return self._proof(batch)

    def take(self, data: bytes) -> str:
        """What becomes of the batch. Raises Refused."""
        batch = self._read(data)
        if batch.seq == 0:
            raise Refused("seq 0")
        self._heard.add(batch.epoch)
        if batch.epoch in self._over:
            return "over"
        if batch.epoch != self.epoch:
            return "epoch"
        if batch.seq == self.seq and self._last not in (b"", data):
            return "forged"
        if batch.seq <= self.seq:
            return "stale"
        if batch.seq > self.seq + 1:
            return "gap"
        self.seq, self._last = batch.seq, data
        self._apply(batch)
        return self._proof(batch)

    def coming(self, chain: list[int]) -> int:
        """How many of a prompt's first blocks are held, or expected."""
        coming = _same(chain, [block if block in self.blocks else 0 for block in chain])
        for start, hashes in self.expected.values():
            if same := _same(chain[start:], hashes):
                coming = max(coming, start + same)
        return coming

    @property
    def digest(self) -> int:
        return sum(self.blocks) & MASK

    def _proof(self, batch: Batch) -> str:
        proven = (len(self.blocks), self.digest) == (batch.count, batch.digest)
        return "applied" if proven else "mismatch"

    def _read(self, data: bytes) -> Batch:
        numbers = dict.fromkeys((1, 2, 3, 4, 7, 8), 0)
        events = []
        for field, value in _fields(data):
            if field in numbers:
                numbers[field] = _number(value)
            elif field == 5:
                events.append(_bytes(value))
            elif field == 6:
                _check_load(_bytes(value))
        epoch, seq, block_size, hash_version, count, digest = numbers.values()
        if epoch == 0 or (block_size, hash_version) != (self._block_size, self._hash_version):
            raise Refused(f"epoch {epoch}, block size {block_size}, hash version {hash_version}")
        for kind, _, hashes in map(_event, events):
            if 0 in (hashes if kind == 1 else hashes[1:] if kind == 4 else ()):
                raise Refused("a hash is 0")
        return Batch(epoch, seq, count, digest, events)

    def _apply(self, batch: Batch) -> None:
        for kind, first, rest in map(_event, batch.events):
            if kind == 1:
                before = first
                for block in rest:
                    self._before[block] = before
                    self.blocks.add(block)
                    before = block
            elif kind == 2:
                block, (count,) = first, rest
                for _ in range(count):
                    self.blocks.discard(block)
                    block = self._before.get(block, 0)
            elif kind == 3:
                self.blocks.clear()
            elif kind == 4:
                self.expected.setdefault(first, (rest[0], rest[1:]))
            elif kind == 5:
                self.expected.pop(first, None)
            waiting = self.expected.items()
            self.expected = {id: each for id, each in waiting if each[1][-1] not in self.blocks}


def _event(data: bytes) -> tuple[int, int, list[int]]:
    """Kind; parent and hashes of a Stored, last and count of a Removed, id and (start, *hashes) of
    an Expected, id of a Dropped.
    """
    kind, first, rest = 0, 0, [0]
    for field, value in _fields(data):
        if field == 1:
            kind, first, rest = 1, 0, []
            for inner, number in _fields(_bytes(value)):
                if inner == 1:
                    first = _number(number)
                elif inner == 2:
                    rest += _hashes(number)
        elif field == 2:
            numbers = {1: 0, 2: 0}
            numbers.update({inner: _number(number) for inner, number in _fields(_bytes(value))})
            kind, first, rest = 2, numbers[1], [numbers[2]]
        elif field == 3:
            kind, first, rest = 3, 0, [0]
        elif field == 4:
            kind, first, rest = 4, 0, [0]
            for inner, number in _fields(_bytes(value)):
                if inner == 1:
                    first = _number(number)
                elif inner == 2:
                    rest[0] = _number(number)
                elif inner == 3:
                    rest += _hashes(number)
        elif field == 5:
            kind, first, rest = 5, dict(_fields(_bytes(value)))[1], [0]  # type: ignore[assignment]
    return kind, first, rest


def _same(chain: list[int], other: list[int]) -> int:
    """How many of their first blocks are the same."""
    pairs = zip(chain, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _hashes(value: int | bytes) -> list[int]:
    """Packed, or one of those that are not."""
    if isinstance(value, int):
        return [value]
    return [int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8)]


def _check_load(data: bytes) -> None:
    for field, value in _fields(data):
        if field == 4 and dict(_fields(_bytes(value))).get(1, 0) > MOST_LOG2:  # type: ignore[operator]
            raise Refused("the class of a load is above 31")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in order."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise Refused("it ends within a number")
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value & MASK

    def some(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise Refused("it ends within a field")
        return data[at - size : at]

    read: dict[int, Callable[[], int | bytes]] = {
        0: varint,
        1: lambda: int.from_bytes(some(8), "little"),
        2: lambda: some(varint()),
        5: lambda: int.from_bytes(some(4), "little"),
    }
    while at < len(data):
        tag = varint()
        if tag & 7 not in read or tag >> 3 == 0:
            raise Refused(f"wire type {tag & 7} of field {tag >> 3}")
        yield tag >> 3, read[tag & 7]()


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Refused("bytes where a number is expected")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Refused("a number where a message is expected")
    return value
