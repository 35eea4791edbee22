"""The two cores of the tree as one: every call goes to both, and both must answer the same."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from radix_rs import Tree
from replica.py_tree import PyTree
from replica.slot_ranges import from_bytes, to_slots
from replica.tree_core import Deltas, TreeStats
from replica.tree_error import TreeError
from tests.model import PLAIN, Namespace

T = TypeVar("T")

Handles = tuple[int, ...]
"""What each core calls the same node or receipt."""


@dataclass(frozen=True)
class Found:
    length: int
    slots: list[int]
    node: Handles


@dataclass(frozen=True)
class Inserted:
    prefix_length: int
    duplicates: list[tuple[int, int]]
    node: Handles


@dataclass(frozen=True)
class Admitted:
    length: int
    slots: list[int]
    node: Handles
    receipt: Handles


@dataclass(frozen=True)
class Checkpointed:
    length: int
    prefix_length: int
    freed: list[int]
    slots: list[int]
    """The caller's buffer after the call."""
    node: Handles
    receipt: Handles


class BothCores:
    """Arguments of a tree go to `Tree` and `PyTree`. Tokens and slots are lists here."""

    def __init__(self, **arguments: Any) -> None:
        self.trees: list[Tree | PyTree] = []
        self._both(lambda make: self.trees.append(make(**arguments)), [Tree, PyTree])

    def match_prefix(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> Found:
        outs = self._buffers([-1] * len(tokens))
        found = self._each(
            lambda tree, out: tree.match_prefix(u32(tokens), out, **names(namespace)), outs
        )
        length = same([one.length for one in found])
        slots = same([list(out) for out in outs])
        assert set(slots[length:]) <= {-1}, "slots past the match are left alone"
        return Found(length, slots[:length], tuple(one.node for one in found))

    def match_without_slots(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> Found:
        found = self._each(lambda tree: tree.match_prefix(u32(tokens), **names(namespace)))
        return Found(same([one.length for one in found]), [], tuple(one.node for one in found))

    def touch(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> int:
        return same(self._each(lambda tree: tree.touch(u32(tokens), **names(namespace))))

    def peek(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> int:
        return same(self._each(lambda tree: tree.peek(u32(tokens), **names(namespace))))

    def find(
        self,
        tokens: Sequence[int],
        node: Handles | None = None,
        length: int = 0,
        namespace: Namespace = PLAIN,
    ) -> Found:
        found = self._each(
            lambda tree, handle: tree.find(
                u32(tokens), node=handle, length=length, **names(namespace)
            ),
            node or [0] * len(self.trees),
        )
        return Found(same([one.length for one in found]), [], tuple(one.node for one in found))

    def expected(
        self,
        id: int,
        tokens: Sequence[int],
        node: Handles | None = None,
        length: int = 0,
        namespace: Namespace = PLAIN,
    ) -> bytes:
        """Byte for byte the same."""
        return same(
            self._each(
                lambda tree, handle: tree.expected(
                    id, u32(tokens), node=handle, length=length, **names(namespace)
                ),
                node or [0] * len(self.trees),
            )
        )

    def parent(self, node: Handles) -> Handles | None:
        above = self._each(lambda tree, handle: tree.parent(handle), node)
        same([handle is None for handle in above])
        return None if above[0] is None else tuple(handle for handle in above if handle is not None)

    def insert(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        namespace: Namespace = PLAIN,
        **claim: int,
    ) -> Inserted:
        done = self._each(
            lambda tree: tree.insert(u32(tokens), i32(slots), **claim, **names(namespace))
        )
        return Inserted(
            same([one.prefix_length for one in done]),
            same([one.duplicates for one in done]),
            tuple(one.node for one in done),
        )

    def lock(self, node: Handles) -> Handles:
        return tuple(self._each(lambda tree, handle: tree.lock(handle), node))

    def unlock(self, receipt: Handles) -> None:
        self._each(lambda tree, handle: tree.unlock(handle), receipt)

    def admit(
        self,
        tokens: Sequence[int],
        namespace: Namespace = PLAIN,
        receipt: Handles | None = None,
    ) -> Admitted:
        outs = self._buffers([-1] * len(tokens))
        admitted = self._each(
            lambda tree, out, held: tree.admit(u32(tokens), out, receipt=held, **names(namespace)),
            outs,
            receipt or [None] * len(self.trees),
        )
        length = same([one.length for one in admitted])
        slots = same([list(out) for out in outs])
        assert set(slots[length:]) <= {-1}, "slots past the match are left alone"
        return Admitted(
            length,
            slots[:length],
            tuple(one.node for one in admitted),
            tuple(one.receipt for one in admitted),
        )

    def checkpoint(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        receipt: Handles,
        namespace: Namespace = PLAIN,
        **claim: int,
    ) -> Checkpointed:
        buffers = self._buffers(slots)
        done = self._each(
            lambda tree, own, held: tree.checkpoint(
                u32(tokens), own, receipt=held, **claim, **names(namespace)
            ),
            buffers,
            receipt,
        )
        return Checkpointed(
            same([one.length for one in done]),
            same([one.prefix_length for one in done]),
            numbers(same([one.freed for one in done])),
            same([list(own) for own in buffers]),
            tuple(one.node for one in done),
            tuple(one.receipt for one in done),
        )

    def finish(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        receipt: Handles,
        namespace: Namespace = PLAIN,
        **claim: int,
    ) -> list[int]:
        freed = self._each(
            lambda tree, held: tree.finish(
                u32(tokens), i32(slots), receipt=held, **claim, **names(namespace)
            ),
            receipt,
        )
        return numbers(same(freed))

    def evict(self, num_tokens: int) -> list[int]:
        """Both take the same victims in the same order."""
        return numbers(same(self._each(lambda tree: tree.evict(num_tokens))))

    def reset(self) -> list[int]:
        """In no order."""
        return same([sorted(numbers(slots)) for slots in self._each(lambda tree: tree.reset())])

    def drain_deltas(self) -> Deltas | None:
        """Byte for byte the same."""
        deltas = self._each(lambda tree: tree.drain_deltas())
        same([(one.events, one.stored, one.removed) if one else None for one in deltas])
        same([(one.count, one.digest) if one else None for one in deltas])
        return deltas[0]

    def snapshots(self, max_blocks: int) -> list[list[bytes]]:
        """One of each core: they may take the namespaces in another order."""
        return self._each(lambda tree: list(tree.snapshot(max_blocks)))

    def count_digest(self) -> tuple[int, int]:
        return same(self._each(lambda tree: tree.count_digest()))

    def stats(self) -> TreeStats:
        stats = self._each(lambda tree: tree.stats())
        names = ("nodes", "tokens", "evictable", "protected", "locks", "evicted_total")
        same([[getattr(one, name) for name in names] for one in stats])
        return stats[0]

    def dump(self) -> str:
        return same(self._each(lambda tree: tree.dump()))

    def check(self) -> None:
        self._each(lambda tree: tree.check())

    def _buffers(self, items: Sequence[int]) -> list[array[int]]:
        return [i32(items) for _ in self.trees]

    def _each(self, call: Callable[..., T], *per_core: Sequence[Any]) -> list[T]:
        return self._both(call, self.trees, *per_core)

    def _both(self, call: Callable[..., T], *per_core: Sequence[Any]) -> list[T]:
        """The answers, or the error if both raise the same."""
        answers: list[T] = []
        errors: list[TreeError] = []
        for arguments in zip(*per_core, strict=True):
            try:
                answers.append(call(*arguments))
            except TreeError as error:
                errors.append(error)
        if errors:
            assert not answers, f"one core refuses: {errors}"
            same([re.sub(r"(node|receipt) \d+", r"\1", str(error)) for error in errors])
            raise errors[0]
        return answers


def same(answers: Sequence[T]) -> T:
    first, *others = answers
    for other in others:
        assert other == first, "the cores answer the same"
    return first


def u32(tokens: Sequence[int]) -> array[int]:
    return array("I", tokens)


def i32(slots: Sequence[int]) -> array[int]:
    return array("i", slots)


def numbers(ranges: bytes) -> list[int]:
    return list(map(int, to_slots(from_bytes(ranges))))


def names(namespace: Namespace) -> dict[str, str]:
    return {"extra_key": namespace[0], "cache_salt": namespace[1]}
