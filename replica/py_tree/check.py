"""Every invariant of the Python tree core, computed anew. For tests."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from replica.py_tree import chain
from replica.py_tree.node import Node, first_page
from replica.py_tree.results import TreeStats
from replica.py_tree.structure import Namespace, Structure
from replica.tree_error import TreeError


def check_structure(structure: Structure) -> None:
    """Links agree in both directions, edges are whole pages, everything hangs from a root."""
    reached = dict(_below_roots(structure))
    _holds(reached.keys() | _roots(structure) == structure.nodes.keys(), "a node hangs in the air")
    slots: list[np.ndarray] = []
    for node in reached.values():
        assert node.parent is not None
        child = node.parent.children.get(first_page(node.tokens, structure.page_size))
        _holds(child is node, f"a lookup of node {node.handle} finds another")
        whole = len(node.tokens) > 0 and len(node.tokens) % structure.page_size == 0
        _holds(whole, f"node {node.handle} has {len(node.tokens)} tokens")
        _holds(node.start == node.parent.end, f"node {node.handle} begins at {node.start}")
        _holds(len(node.slots) == len(node.tokens), f"node {node.handle} has other slots")
        slots.append(node.slots)
    distinct = len(np.unique(np.concatenate(slots))) if slots else 0
    _holds(distinct == sum(map(len, slots)), "a slot is in the tree twice")


def check_locks(structure: Structure, receipts: Iterable[Node], stats: TreeStats) -> None:
    """Lock counts are the receipts that cover a node; sizes follow from them."""
    locks = Counter(node.handle for end in receipts for node in end.path())
    nodes = dict(_below_roots(structure)).values()
    for node in nodes:
        _holds(node.lock_ref == locks[node.handle], f"node {node.handle} counts wrong locks")
    protected = sum(len(node.tokens) for node in nodes if node.lock_ref)
    evictable = sum(len(node.tokens) for node in nodes if not node.lock_ref)
    _holds((evictable, protected) == (stats.evictable, stats.protected), "sizes are wrong")


def check_blocks(
    structure: Structure,
    seed: Callable[[Namespace], int],
    hash_key: bytes,
    counted: tuple[int, int],
) -> None:
    """Hashes are those of the path's tokens, count and digest those of the hashes."""
    hashes: list[int] = []
    for namespace, root in structure.roots.items():
        for node in structure.below(root):
            path = np.concatenate([part.tokens for part in reversed(list(node.path()))])
            chained = chain.extend_chain(hash_key, seed(namespace), path, structure.block_size)
            first = node.start // structure.block_size
            _holds(node.hashes == chained[first:], f"block hashes of node {node.handle} are wrong")
            ended = node.end // structure.block_size - node.start // structure.block_size
            _holds(len(node.hashes) == ended, f"node {node.handle} has {len(node.hashes)} blocks")
            hashes += node.hashes
    digest = sum(hashes) % 2**64
    _holds((len(hashes), digest) == counted, f"{len(hashes)} blocks, counted {counted}")


def _roots(structure: Structure) -> set[int]:
    return {root.handle for root in structure.roots.values()}


def _below_roots(structure: Structure) -> Iterable[tuple[int, Node]]:
    for root in structure.roots.values():
        yield from ((node.handle, node) for node in structure.below(root))


def _holds(condition: bool, message: str) -> None:
    if not condition:
        raise TreeError(f"broken invariant: {message}")
