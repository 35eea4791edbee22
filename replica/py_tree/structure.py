"""Nodes and how they hang together in the Python tree core: walks, splits, leaves, and its text."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from replica.py_tree.node import Node, Slots, Tokens, common_prefix, first_page

Namespace = tuple[str, str]
"""(extra_key, cache_salt), empty meaning absent."""

PLAIN: Namespace = ("", "")


@dataclass(frozen=True)
class Place:
    """Where a walk ended: `within` tokens into the edge of `node`, `matched` from the root."""

    node: Node
    within: int
    matched: int


class Structure:
    """A root for each namespace that holds something, and one for the plain one in any case."""

    def __init__(self, *, page_size: int, block_size: int) -> None:
        self.page_size = page_size
        self.block_size = block_size
        # No handle is used again, nor after `clear`.
        self._new_handle = itertools.count(1 << 40).__next__
        self.nodes: dict[int, Node] = {}
        self.roots: dict[Namespace, Node] = {}
        self.clear()

    def clear(self) -> None:
        self.nodes.clear()
        self.roots = {PLAIN: self._new_root()}

    @property
    def plain_root(self) -> Node:
        """Where every empty match ends."""
        return self.roots[PLAIN]

    def root_or_new(self, namespace: Namespace) -> Node:
        if namespace not in self.roots:
            self.roots[namespace] = self._new_root()
        return self.roots[namespace]

    def locate(self, key: Tokens, namespace: Namespace) -> Place | None:
        """Walk down as far as whole pages of `key` match; None if not one does."""
        root = self.roots.get(namespace)
        place = self.walk(key, Place(root, 0, 0)) if root else None
        return place if place and place.matched else None

    def resume(self, key: Tokens, handle: int, matched: int) -> Place | None:
        """Where a walk for this key stands by now that ended at `matched`, in the same edge.

        The node keeps its end; a split may have cut its beginning off. The key may have ended
        there. None if the node is gone.
        """
        node = self.nodes.get(handle)
        if node is None or matched % self.page_size or not 0 < matched <= min(node.end, len(key)):
            return None
        while node.start >= matched:
            assert node.parent is not None
            node = node.parent
        within = matched - node.start
        common = common_prefix(node.tokens[within:], key[matched:])
        more = common - common % self.page_size
        return Place(node, within + more, matched + more)

    def walk(self, key: Tokens, place: Place) -> Place:
        """Walk on from `place`, down as far as whole pages of `key` match."""
        node, within, matched = place.node, place.within, place.matched
        while within == len(node.tokens):
            child = node.children.get(first_page(key[matched:], self.page_size))
            if child is None:
                break
            common = common_prefix(child.tokens, key[matched:])
            within = common - common % self.page_size
            node, matched = child, matched + within
        return Place(node, within, matched)

    def settle(self, place: Place) -> Node:
        """The node that ends exactly at `place`, split off if the place is inside an edge."""
        if place.within == len(place.node.tokens):
            return place.node
        upper = place.node.split(place.within, self.page_size, self.block_size, self._new_handle())
        self.nodes[upper.handle] = upper
        return upper

    def add_leaf(self, parent: Node, tokens: Tokens, slots: Slots) -> Node:
        leaf = Node(tokens, slots, parent, self._new_handle())
        parent.children[first_page(tokens, self.page_size)] = leaf
        self.nodes[leaf.handle] = leaf
        return leaf

    def remove_leaf(self, leaf: Node) -> None:
        """A namespace is forgotten with its last node."""
        assert leaf.parent is not None
        del self.nodes[leaf.handle]
        del leaf.parent.children[first_page(leaf.tokens, self.page_size)]
        if leaf.parent.parent is None and not leaf.parent.children:
            for namespace, root in list(self.roots.items()):
                if root is leaf.parent and namespace != PLAIN:
                    del self.nodes[root.handle], self.roots[namespace]

    def last_hash(self, node: Node) -> int | None:
        """Of the last block that ends at or before the end of `node`."""
        return next((above.hashes[-1] for above in node.path() if above.hashes), None)

    def hash_on_path(self, node: Node, block: int) -> int:
        """Of the block numbered `block`, which ends on the path to `node`."""
        end = (block + 1) * self.block_size
        holder = next(above for above in node.path() if above.start < end)
        return holder.hashes[block - holder.start // self.block_size]

    def below(self, root: Node) -> Iterator[Node]:
        """The nodes under `root`, parents first."""
        # No recursion: a path may have a node for each page.
        stack = [root]
        while stack:
            node = stack.pop()
            if node is not root:
                yield node
            stack += reversed(node.children.values())

    def dump(self) -> str:
        lines = ["root"]
        for namespace, root in sorted(self.roots.items(), key=lambda item: item[0]):
            if namespace != PLAIN:
                lines.append(f'root extra_key="{namespace[0]}" cache_salt="{namespace[1]}"')
            stack = [(root, 0)]
            while stack:
                node, depth = stack.pop()
                if depth:
                    lines.append("  " * depth + _describe(node))
                children = sorted(node.children.values(), key=lambda child: list(child.tokens))
                stack += [(child, depth + 1) for child in reversed(children)]
        return "\n".join(lines) + "\n"

    def _new_root(self) -> Node:
        root = Node(np.empty(0, np.uint32), np.empty(0, np.int32), None, self._new_handle())
        self.nodes[root.handle] = root
        return root


def _describe(node: Node) -> str:
    """No token ids: they are somebody's prompt."""
    ends = np.flatnonzero(np.diff(node.slots) != 1)
    runs = np.split(node.slots, ends + 1)
    ranges = ",".join(f"{run[0]}..{int(run[-1]) + 1}" for run in runs)
    return f"{len(node.tokens)} lock={node.lock_ref} hits={node.hits} slots={ranges}"
