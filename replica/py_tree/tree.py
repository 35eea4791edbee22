"""The replica's tree in plain Python: the same answers as `radix_rs.Tree`, which is the manual.

It is the reference in tests, and serves where the extension cannot. The calls that do several
things at once (`admit`, `checkpoint`, `finish`) are written as the small calls they stand for.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import Buffer

from proto.prefixlb.v1 import delta_pb2
from replica.py_tree import chain
from replica.py_tree.arguments import (
    MAX_LENGTH,
    namespace,
    natural,
    signed,
    slot_array,
    token_array,
    writable_slots,
)
from replica.py_tree.block_log import BlockLog, Deltas, encode, push_run
from replica.py_tree.check import check_blocks, check_locks, check_structure
from replica.py_tree.node import Node, Slots, Tokens
from replica.py_tree.policy import Evictable, make_policy
from replica.py_tree.results import Admission, Checkpoint, Insert, Match, TreeStats
from replica.py_tree.structure import Namespace, Place, Structure
from replica.slot_ranges import to_ranges
from replica.tree_error import TreeError

_MAX_PRIORITY = 2**63 - 1
_NO_SLOTS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class _Claim:
    """What a request says of the key it inserts."""

    owned_from: int
    counted_to: int
    priority: int
    namespace: Namespace


def _claim(
    owned_from: int, counted_to: int, priority: int, extra_key: str, cache_salt: str
) -> _Claim:
    return _Claim(
        natural(owned_from),
        natural(counted_to),
        signed(priority),
        namespace(extra_key, cache_salt),
    )


class PyTree:
    """`policy_options` may be any numbers, where `radix_rs.Tree` takes ints only."""

    def __init__(
        self,
        *,
        page_size: int = 1,
        block_size: int = 16,
        hash_key: bytes,
        model: str,
        policy: str = "lru",
        policy_options: Mapping[str, float] | None = None,
        disabled: bool = False,
    ) -> None:
        hash_key = chain.whole_key(hash_key)
        page_size, block_size = natural(page_size), natural(block_size)
        order = make_policy(policy, policy_options or {})
        possible = 1 <= page_size <= MAX_LENGTH and 1 <= block_size <= MAX_LENGTH
        if not possible or block_size % page_size:
            raise TreeError(
                f"page_size {page_size}, block_size {block_size}: both must be at least 1 and at "
                f"most {MAX_LENGTH}, and block_size a multiple of page_size"
            )
        self._hash_key = hash_key
        self._model = model
        self._disabled = disabled
        self._structure = Structure(page_size=page_size, block_size=block_size)
        self._evictable = Evictable(order)
        # Far from the nodes' handles, so that one is never taken for the other.
        self._new_receipt = itertools.count((1 << 63) + (1 << 40)).__next__
        self._receipts: dict[int, Node] = {}
        self._clock = 0
        self._evictable_tokens = 0
        self._protected_tokens = 0
        self._evicted_total = 0
        self._blocks = BlockLog()

    def match_prefix(
        self,
        tokens: Buffer,
        slots_out: Buffer | None = None,
        *,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Match:
        key = token_array("tokens", tokens)
        out = None if slots_out is None else _room_for(key, slots_out)
        length, end = self._match(key, namespace(extra_key, cache_salt))
        if out is not None:
            _gather(end, out)
        return Match(length, end.handle)

    def touch(self, tokens: Buffer, *, extra_key: str = "", cache_salt: str = "") -> int:
        return self._match(token_array("tokens", tokens), namespace(extra_key, cache_salt))[0]

    def peek(self, tokens: Buffer, *, extra_key: str = "", cache_salt: str = "") -> int:
        return self._held(token_array("tokens", tokens), namespace(extra_key, cache_salt))

    def find(
        self,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Match:
        space = namespace(extra_key, cache_salt)
        key = self._whole_pages(token_array("tokens", tokens))
        place = self._place(key, node, length, space)
        if place is None:
            return Match(0, self._structure.plain_root.handle)
        return Match(place.matched, place.node.handle)

    def expected(
        self,
        id: int,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes:
        space = namespace(extra_key, cache_salt)
        key = self._whole_pages(token_array("tokens", tokens))
        place = self._place(key, node, length, space)
        start = place.matched // self._structure.block_size if place else 0
        node_there = place.node if place else self._structure.plain_root
        _, hashes = self._hash_blocks(node_there, key, start, space)
        if not hashes:
            return b""
        expected = delta_pb2.Expected(id=natural(id), start=start, hashes=hashes)
        return encode([delta_pb2.DeltaEvent(expected=expected)])

    def parent(self, node: int) -> int | None:
        above = self._node(node).parent
        return above.handle if above else None

    def insert(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        owned_from: int = 0,
        counted_to: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Insert:
        key, own = token_array("tokens", tokens), slot_array("slots", slots)
        claim = _claim(owned_from, counted_to, priority, extra_key, cache_salt)
        held, end = self._insert(key, own, claim)
        duplicates = [(claim.owned_from, held)] if claim.owned_from < held else []
        return Insert(held, end.handle, duplicates)

    def lock(self, node: int) -> int:
        return self._lock(self._node(node))

    def unlock(self, receipt: int) -> None:
        for node in self._locked(receipt).path():
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self._protected_tokens -= len(node.tokens)
                self._evictable_tokens += len(node.tokens)
            self._evictable.insert(node)
        del self._receipts[receipt]

    def admit(
        self,
        tokens: Buffer,
        slots_out: Buffer,
        *,
        receipt: int | None = None,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Admission:
        key = token_array("tokens", tokens)
        out = _room_for(key, slots_out)
        if receipt is not None:
            self._locked(receipt)
        length, end = self._match(key, namespace(extra_key, cache_salt))
        _gather(end, out)
        locked = self._lock(end)
        if receipt is not None:
            self.unlock(receipt)
        return Admission(length, end.handle, locked)

    def checkpoint(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Checkpoint:
        key, own = token_array("tokens", tokens), writable_slots("slots", slots)
        claim = _claim(owned_from, counted_to, priority, extra_key, cache_salt)
        held, end = self._store(key, own, claim, natural(prompt_length), receipt)
        freed = _ranges(own[claim.owned_from : held])
        _gather(end, own, claim.owned_from)
        locked = self._lock(end)
        self.unlock(receipt)
        return Checkpoint(end.end, held, end.handle, locked, freed)

    def finish(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes:
        key, own = token_array("tokens", tokens), slot_array("slots", slots)
        claim = _claim(owned_from, counted_to, priority, extra_key, cache_salt)
        held, end = self._store(key, own, claim, natural(prompt_length), receipt)
        self.unlock(receipt)
        return _ranges(own[claim.owned_from : held], own[end.end :])

    def evict(self, num_tokens: int) -> bytes:
        num_tokens = natural(num_tokens)
        pieces: list[Slots] = []
        freed = 0
        while freed < num_tokens and (leaf := self._evictable.pop()):
            self._remove_leaf(leaf)
            pieces.append(leaf.slots)
            freed += len(leaf.slots)
        self._evicted_total += freed
        return _ranges(*pieces)

    def reset(self) -> bytes:
        if self._receipts:
            raise TreeError(f"reset while {len(self._receipts)} locks are held")
        slots = _ranges(*(node.slots for node in self._structure.nodes.values()))
        self._structure.clear()
        self._evictable.clear()
        self._evictable_tokens = 0
        self._blocks.clear()
        return slots

    def drain_deltas(self) -> Deltas | None:
        return self._blocks.drain()

    def snapshot(self, max_blocks: int = 65536) -> Iterator[bytes]:
        max_blocks = natural(max_blocks)
        if max_blocks == 0:
            raise TreeError("max_blocks: expected at least 1, got 0")
        chunks = []
        events: list[delta_pb2.DeltaEvent] = []
        room = max_blocks
        for root in self._structure.roots.values():
            for node in self._structure.below(root):
                before = self._structure.last_hash(node.parent or root)
                rest = node.hashes
                while rest:
                    run, rest = rest[:room], rest[room:]
                    push_run(events, before, run)
                    before = run[-1]
                    room -= len(run)
                    if room == 0:
                        chunks.append(encode(events))
                        events, room = [], max_blocks
        return iter([*chunks, encode(events)] if events else chunks)

    def count_digest(self) -> tuple[int, int]:
        return self._blocks.count, self._blocks.digest

    def stats(self) -> TreeStats:
        return TreeStats(
            nodes=len(self._structure.nodes) - len(self._structure.roots),
            tokens=self._evictable_tokens + self._protected_tokens,
            evictable=self._evictable_tokens,
            protected=self._protected_tokens,
            locks=len(self._receipts),
            evicted_total=self._evicted_total,
        )

    def dump(self) -> str:
        return self._structure.dump()

    def check(self) -> None:
        check_structure(self._structure)
        check_locks(self._structure, self._receipts.values(), self.stats())
        check_blocks(self._structure, self._seed, self._hash_key, self.count_digest())
        self._evictable.check(self._structure.nodes.values())

    def _place(self, key: Tokens, node: int, length: int, namespace: Namespace) -> Place | None:
        """Where a walk for `key` ends, going on from `node` and `length` if that can be."""
        since = self._structure.resume(key, natural(node), natural(length))
        if since:
            return self._structure.walk(key, since)
        return self._structure.locate(key, namespace)

    def _whole_pages(self, tokens: Tokens) -> Tokens:
        if self._disabled:
            return tokens[:0]
        return tokens[: len(tokens) - len(tokens) % self._structure.page_size]

    def _held(self, tokens: Tokens, namespace: Namespace) -> int:
        place = self._structure.locate(self._whole_pages(tokens), namespace)
        return place.matched if place else 0

    def _match(self, tokens: Tokens, namespace: Namespace) -> tuple[int, Node]:
        place = self._structure.locate(self._whole_pages(tokens), namespace)
        if place is None:
            return 0, self._structure.plain_root
        end = self._settle(place)
        self._touch(end)
        return place.matched, end

    def _insert(self, tokens: Tokens, slots: Slots, claim: _Claim) -> tuple[int, Node]:
        """How much the tree held before, and the node the key ends at."""
        if len(slots) < len(tokens):
            raise TreeError(
                f"slots: expected at least {len(tokens)}, one for each token, got {len(slots)}"
            )
        key = self._whole_pages(tokens)
        place = self._structure.locate(key, claim.namespace)
        held = place.matched if place else 0
        if min(claim.owned_from, len(key)) > held:
            raise _not_held(claim.owned_from, held)

        end = self._settle(place) if place else self._structure.plain_root
        if held < len(key):
            parent = end if place else self._structure.root_or_new(claim.namespace)
            end = self._add_leaf(parent, key, slots, claim.namespace)
        self._touch(end)
        self._evictable.remove(end)
        for node in end.path():
            node.hits += node.end > claim.counted_to
            node.priority = max(node.priority, claim.priority)
            node.history = max(node.history, len(key))
        self._evictable.insert(end)
        return held, end

    def _store(
        self, tokens: Tokens, slots: Slots, claim: _Claim, prompt_length: int, receipt: int
    ) -> tuple[int, Node]:
        """Insert the key, and end a node where prompt and output meet: the output can go alone.

        The prompt matters more than the output: its priority is one higher.
        """
        self._locked(receipt)
        whole = len(self._whole_pages(tokens))
        if claim.owned_from > whole:
            raise _not_held(claim.owned_from, self._held(tokens, claim.namespace))
        held, end = self._insert(tokens, slots, claim)
        prompt = self._whole_pages(tokens[:prompt_length])
        if 0 < len(prompt) < whole:
            higher = min(claim.priority + 1, _MAX_PRIORITY)
            self._insert(prompt, slots, _Claim(len(prompt), len(prompt), higher, claim.namespace))
        self._touch(end)
        return held, end

    def _add_leaf(self, parent: Node, key: Tokens, slots: Slots, namespace: Namespace) -> Node:
        self._evictable.remove(parent)
        start, stop = parent.end, len(key)
        # Copies: the caller's buffers are used again.
        leaf = self._structure.add_leaf(parent, key[start:].copy(), slots[start:stop].copy())
        # The first block that ends in the leaf may begin above it.
        first = start // self._structure.block_size
        before, leaf.hashes = self._hash_blocks(parent, key, first, namespace)
        self._blocks.store(before, leaf.hashes)
        self._evictable_tokens += len(leaf.tokens)
        leaf.created = self._clock + 1
        return leaf

    def _hash_blocks(
        self, node: Node, key: Tokens, first: int, namespace: Namespace
    ) -> tuple[int | None, list[int]]:
        """The hash before the blocks of `key` from the one numbered `first` on, and theirs.

        All before those are on the path to `node`.
        """
        size = self._structure.block_size
        of_group = first % chain.blocks_in_group(size)
        group = first - of_group
        before = self._structure.hash_on_path(node, group - 1) if group else None
        anchor = self._seed(namespace) if before is None else before
        hashes = chain.extend_chain(self._hash_key, anchor, key[group * size :], size)
        # Those of the group that are known come again.
        return hashes[of_group - 1] if of_group else before, hashes[of_group:]

    def _remove_leaf(self, leaf: Node) -> None:
        assert leaf.parent is not None
        self._blocks.remove(self._structure.last_hash(leaf.parent), leaf.hashes)
        self._structure.remove_leaf(leaf)
        self._evictable_tokens -= len(leaf.tokens)
        self._evictable.insert(leaf.parent)

    def _settle(self, place: Place) -> Node:
        # The lower part begins later than the whole, which some policies mind.
        self._evictable.remove(place.node)
        end = self._structure.settle(place)
        self._evictable.insert(place.node)
        return end

    def _touch(self, end: Node) -> None:
        """Make the path the most recent, each node more than its parent."""
        self._evictable.remove(end)
        for node in reversed(list(end.path())):
            self._clock += 1
            node.last_used = self._clock
        self._evictable.insert(end)

    def _lock(self, end: Node) -> int:
        for node in end.path():
            self._evictable.remove(node)
            node.lock_ref += 1
            if node.lock_ref == 1:
                self._evictable_tokens -= len(node.tokens)
                self._protected_tokens += len(node.tokens)
        receipt = self._new_receipt()
        self._receipts[receipt] = end
        return receipt

    def _node(self, handle: int) -> Node:
        node = self._structure.nodes.get(natural(handle))
        if node is None:
            raise TreeError(f"unknown node {handle}: evicted, reset, or never a node of this tree")
        return node

    def _locked(self, receipt: int) -> Node:
        end = self._receipts.get(natural(receipt))
        if end is None:
            raise TreeError(
                f"unknown receipt {receipt}: unlocked before, or never given out by this tree"
            )
        return end

    def _seed(self, namespace: Namespace) -> int:
        return chain.namespace_seed(self._hash_key, self._model, *namespace)


def _ranges(*pieces: Slots) -> bytes:
    return to_ranges(np.concatenate([_NO_SLOTS, *pieces])).tobytes()


def _room_for(key: Tokens, slots_out: Buffer) -> Slots:
    out = writable_slots("slots_out", slots_out)
    if len(out) < len(key):
        raise TreeError(
            f"slots_out: expected room for {len(key)} slots, one for each token, got {len(out)}"
        )
    return out


def _gather(end: Node, out: Slots, since: int = 0) -> None:
    """Write the slots of the path, those of the positions from `since` on."""
    for node in end.path():
        if node.end > since:
            first = max(node.start, since)
            out[first : node.end] = node.slots[first - node.start :]


def _not_held(owned_from: int, held: int) -> TreeError:
    return TreeError(f"owned_from {owned_from}: the tree holds only {held} tokens of this key")
