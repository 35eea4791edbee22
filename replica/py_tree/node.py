"""A node of the Python tree core: an edge's tokens, their slots, and who uses them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.int32]


class Node:
    """`tokens` lead from the parent to the node; a root has none."""

    __slots__ = (
        "children",
        "created",
        "end",
        "handle",
        "hashes",
        "history",
        "hits",
        "last_used",
        "lock_ref",
        "parent",
        "place",
        "priority",
        "slots",
        "tokens",
    )

    def __init__(self, tokens: Tokens, slots: Slots, parent: Node | None, handle: int) -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.handle = handle
        self.children: dict[bytes, Node] = {}
        """By the first page of their tokens, the oldest first."""
        self.end: int = len(tokens) + (parent.end if parent else 0)
        """Tokens from the root to the end of this node."""
        self.hashes: list[int] = []
        """Of the blocks whose last token is here."""
        self.lock_ref = 0
        """Live receipts whose path covers this node."""
        self.hits = 0
        """Requests whose insert reached this node."""
        self.priority = -(2**63)
        """The greatest of those requests."""
        self.history = 0
        """Tokens of the longest key inserted through this node, evicted since or not."""
        self.last_used = 0
        self.created = 0
        self.place: int | None = None
        """Which entry of the evictable nodes is this one's."""

    @property
    def start(self) -> int:
        """Tokens above this node."""
        return self.end - len(self.tokens)

    @property
    def is_evictable(self) -> bool:
        return self.parent is not None and not self.children and not self.lock_ref

    def path(self) -> Iterator[Node]:
        """From this node up to the root, which is left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def split(self, at: int, page_size: int, block_size: int, handle: int) -> Node:
        """Put the first `at` tokens into a node of their own, between this one and its parent.

        This one keeps its handle and its recency: its tokens were not used. The other has the
        handle given, and the locks and all else of the whole.
        """
        assert self.parent is not None
        upper = Node(self.tokens[:at], self.slots[:at], self.parent, handle)
        upper.lock_ref, upper.hits, upper.priority = self.lock_ref, self.hits, self.priority
        upper.history, upper.last_used, upper.created = self.history, self.last_used, self.created
        num_blocks = upper.end // block_size - upper.start // block_size
        upper.hashes, self.hashes = self.hashes[:num_blocks], self.hashes[num_blocks:]
        self.parent.children[first_page(self.tokens, page_size)] = upper
        self.tokens, self.slots, self.parent = self.tokens[at:], self.slots[at:], upper
        upper.children[first_page(self.tokens, page_size)] = self
        return upper


def first_page(tokens: Tokens, page_size: int) -> bytes:
    return tokens[:page_size].tobytes()


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many leading tokens are the same."""
    shorter = min(len(a), len(b))
    differs = a[:shorter] != b[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
