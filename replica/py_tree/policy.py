"""Orders of eviction: the leaf with the smallest key goes first.

Keys end in a tick of the tree's clock, and no two leaves have the same: a tick is given once, but
for the parts of a split, which share that of their making, and of those only one can be a leaf.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping

from replica.py_tree.node import Node
from replica.tree_error import TreeError

Key = tuple[float, int]
"""A class, then a tick."""

Policy = Callable[[Node], Key]


def lru() -> Policy:
    return lambda node: (0, node.last_used)


def lfu() -> Policy:
    return lambda node: (node.hits, node.last_used)


def slru(threshold: float = 2) -> Policy:
    """Under `threshold` hits before the others."""
    return lambda node: (node.hits >= threshold, node.last_used)


def priority() -> Policy:
    return lambda node: (node.priority, node.last_used)


def tlru(threshold: float = 0, next_prompt_estimate: float = 0) -> Policy:
    """Tails before the rest: what the next prompt of a conversation can do without.

    It is expected to be `next_prompt_estimate` tokens longer than the longest key so far, and may
    have `threshold` tokens to compute.
    """

    def key(node: Node) -> Key:
        needed = max(node.history + next_prompt_estimate - threshold, 0)
        return node.start < needed, node.last_used

    return key


def fifo() -> Policy:
    return lambda node: (0, node.created)


def mru() -> Policy:
    return lambda node: (0, -node.last_used)


def filo() -> Policy:
    return lambda node: (0, -node.created)


_POLICIES: dict[str, tuple[Callable[..., Policy], tuple[str, ...]]] = {
    "lru": (lru, ()),
    "lfu": (lfu, ()),
    "slru": (slru, ("threshold",)),
    "priority": (priority, ()),
    "tlru": (tlru, ("threshold", "next_prompt_estimate")),
    "fifo": (fifo, ()),
    "mru": (mru, ()),
    "filo": (filo, ()),
}


def make_policy(name: str, options: Mapping[str, float]) -> Policy:
    """TreeError on a name or an option there is not. Options are numbers, whole or not."""
    if name not in _POLICIES:
        raise TreeError(f'policy "{name}": expected one of {", ".join(_POLICIES)}')
    make, known = _POLICIES[name]
    for option, value in options.items():
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise TreeError(f"policy option {option}: expected a number, 0 or more, got {value}")
        if option not in known:
            names = ", ".join(known) or "none"
            raise TreeError(f'policy {name}: unknown option "{option}", known: {names}')
    return make(**options)


class Evictable:
    """Leaves in the order of a policy.

    A heap whose entries are left behind when their node is taken out: `node.place` tells which one
    counts.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, int, Node]] = []
        self._num_nodes = 0
        self._num_entries = 0

    def insert(self, node: Node) -> None:
        """Put the node in its place, if it is evictable."""
        if node.is_evictable:
            self._num_entries += 1
            self._num_nodes += 1
            node.place = self._num_entries
            heapq.heappush(self._heap, (self._policy(node), node.place, node))

    def remove(self, node: Node) -> None:
        """Take the node out, if it is in. Before anything changes that its key depends on."""
        if node.place is not None:
            node.place = None
            self._num_nodes -= 1
            if len(self._heap) > 2 * self._num_nodes + 64:
                self._heap = [entry for entry in self._heap if entry[2].place == entry[1]]
                heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        """Take out the one that goes first."""
        while self._heap:
            _, place, node = heapq.heappop(self._heap)
            if node.place == place:
                self.remove(node)
                return node
        return None

    def check(self, nodes: Iterable[Node]) -> None:
        """Raise TreeError unless these nodes' evictable ones are listed, at their keys."""
        expected = {node.handle: self._policy(node) for node in nodes if node.is_evictable}
        entries = [(key, node) for key, place, node in self._heap if node.place == place]
        listed = {node.handle: key for key, node in entries}
        keys = set(listed.values())
        if not len(keys) == len(entries) == self._num_nodes or listed != expected:
            raise TreeError(f"broken invariant: evictable are {expected}, listed {entries}")

    def clear(self) -> None:
        self._heap.clear()
        self._num_nodes = 0
