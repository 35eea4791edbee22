"""The compiled tree against the naive model, on random operations."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proto.prefixlb.v1 import delta_pb2
from radix_rs import Deltas, Match, Tree, TreeError, derive_hash_key
from tests.model import PLAIN, End, Model, ModelError, Namespace

KEY = derive_hash_key(b"a secret")
MASK = 2**64 - 1

NAMESPACES: list[Namespace] = [PLAIN, ("a", "bc"), ("ab", "c"), ("", "abc")]


def u32(tokens: Sequence[int]) -> array[int]:
    return array("I", tokens)


def i32(slots: Sequence[int]) -> array[int]:
    return array("i", slots)


def mix(value: int) -> int:
    value = (value ^ (value >> 33)) * 0xFF51_AFD7_ED55_8CCD & MASK
    value = (value ^ (value >> 33)) * 0xC4CE_B9FE_1A85_EC53 & MASK
    return value ^ (value >> 33)


def digest(blocks: set[int]) -> int:
    return sum(map(mix, blocks)) & MASK


class Replay:
    """The set of blocks that a stream of events describes."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}

    def apply(self, events: bytes) -> tuple[int, int]:
        """How many blocks were stored and removed."""
        stored = removed = 0
        for event in delta_pb2.DeltaBatch.FromString(events).events:
            match event.WhichOneof("event"):
                case "stored":
                    stored += self._store(event.stored)
                case "removed":
                    removed += self._remove(event.removed)
                case "cleared":
                    self.parents.clear()
                case other:
                    raise AssertionError(other)
        return stored, removed

    def _store(self, event: delta_pb2.Stored) -> int:
        parent = event.parent
        assert event.hashes
        assert parent == 0 or parent in self.parents, "a run follows a known block or none"
        for block in event.hashes:
            assert block not in self.parents, "nothing is stored twice"
            self.parents[block] = parent
            parent = block
        return len(event.hashes)

    def _remove(self, event: delta_pb2.Removed) -> int:
        block = event.last
        assert event.count
        for _ in range(event.count):
            assert block not in self.parents.values(), "children go before their parent"
            block = self.parents.pop(block)
        return event.count


class TreeMachine(RuleBasedStateMachine):
    """Does the same to a tree and its model, as requests would, and compares all that shows."""

    page_size = 1
    block_size = 4

    keys = st.lists(st.integers(0, 2), max_size=40)
    namespaces = st.sampled_from(NAMESPACES)

    def __init__(self) -> None:
        super().__init__()
        sizes = {"page_size": self.page_size, "block_size": self.block_size}
        self.tree = Tree(hash_key=KEY, model="m", **sizes)
        self.model = Model(hash_key=KEY, model="m", **sizes)
        self.replay = Replay()
        self.free: list[int] = []
        self.made = 0
        self.handles: dict[End, int] = {}
        self.stale: set[int] = set()
        self.locked: list[tuple[int, int]] = []

    def allocate(self, count: int) -> list[int]:
        """Freed slots are used again, the last freed first."""
        while len(self.free) < count:
            self.free.append(self.made)
            self.made += 1
        taken, self.free = self.free[len(self.free) - count :], self.free[: len(self.free) - count]
        return taken

    def keep(self, node: End, handle: int) -> None:
        """A node keeps its handle, and no handle comes again."""
        assert handle not in self.stale
        assert self.handles.setdefault(node, handle) == handle

    def forget_gone(self) -> None:
        for node in [node for node in self.handles if not self.model.is_live(node)]:
            self.stale.add(self.handles.pop(node))

    @rule(tokens=keys, namespace=namespaces)
    def match(self, tokens: list[int], namespace: Namespace) -> None:
        before = (self.tree.count_digest(), self.model.sizes())
        found = self.match_tree(tokens, namespace)
        length, node, slots = self.model.match_prefix(tokens, namespace)
        assert (found[0].length, found[1]) == (length, slots)
        assert before == (self.tree.count_digest(), self.model.sizes())

        nodes = self.tree.stats().nodes
        again = self.match_tree(tokens, namespace)
        self.model.match_prefix(tokens, namespace)
        assert (again[0].length, again[0].node, again[1]) == (length, found[0].node, slots)
        assert self.tree.stats().nodes == nodes, "the second match splits nothing"
        self.keep(node, found[0].node)

    def match_tree(self, tokens: list[int], namespace: Namespace) -> tuple[Match, list[int]]:
        out = i32([-1] * len(tokens))
        extra_key, cache_salt = namespace
        found = self.tree.match_prefix(u32(tokens), out, extra_key=extra_key, cache_salt=cache_salt)
        assert set(out[found.length :]) <= {-1}, "slots past the match are left alone"
        return found, list(out[: found.length])

    @rule(tokens=keys, namespace=namespaces)
    def peek(self, tokens: list[int], namespace: Namespace) -> None:
        extra_key, cache_salt = namespace
        length = self.tree.peek(u32(tokens), extra_key=extra_key, cache_salt=cache_salt)
        assert length == self.model.peek(tokens, namespace)

    @rule(tokens=keys, namespace=namespaces, owned=st.booleans(), counted=st.booleans())
    def insert(self, tokens: list[int], namespace: Namespace, owned: bool, counted: bool) -> None:
        """As a request would: the slots of what it matched, its own for the rest."""
        _, _, held = self.model.match_prefix(tokens, namespace)
        self.match_tree(tokens, namespace)
        owned_from = len(held) if owned else 0
        fresh = self.allocate(len(tokens) - owned_from)
        slots = held[:owned_from] + fresh
        counted_to = owned_from if counted else 0
        extra_key, cache_salt = namespace

        done = self.tree.insert(
            u32(tokens),
            i32(slots),
            owned_from=owned_from,
            counted_to=counted_to,
            extra_key=extra_key,
            cache_salt=cache_salt,
        )
        expected = self.model.insert(
            tokens, slots, owned_from=owned_from, counted_to=counted_to, namespace=namespace
        )
        assert (done.prefix_length, done.duplicates) == (
            expected.prefix_length,
            expected.duplicates,
        )
        whole = len(tokens) - len(tokens) % self.page_size
        assert self.match_tree(tokens, namespace)[0].length == whole
        self.model.match_prefix(tokens, namespace)
        for start, end in done.duplicates:
            self.free += slots[start:end]
        self.free += slots[whole:]
        self.keep(expected.node, done.node)

    @rule(tokens=keys, namespace=namespaces, beyond=st.integers(1, 5))
    def insert_with_too_much_owned(
        self, tokens: list[int], namespace: Namespace, beyond: int
    ) -> None:
        owned_from = self.model.peek(tokens, namespace) + beyond
        slots = range(len(tokens))
        extra_key, cache_salt = namespace

        def insert() -> None:
            self.tree.insert(
                u32(tokens),
                i32(slots),
                owned_from=owned_from,
                extra_key=extra_key,
                cache_salt=cache_salt,
            )

        try:
            self.model.insert(tokens, slots, owned_from=owned_from, namespace=namespace)
        except ModelError:
            with pytest.raises(TreeError, match="owned_from"):
                insert()
        else:
            insert()  # all whole pages are held; the tail beyond them is nobody's concern

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0))
    def lock(self, which: int) -> None:
        node, handle = list(self.handles.items())[which % len(self.handles)]
        self.locked.append((self.model.lock(node), self.tree.lock(handle)))

    @precondition(lambda self: self.stale)
    @rule()
    def lock_what_is_gone(self) -> None:
        for handle in self.stale:
            with pytest.raises(TreeError, match="unknown node"):
                self.tree.lock(handle)

    @precondition(lambda self: self.locked)
    @rule(which=st.integers(0))
    def unlock(self, which: int) -> None:
        expected, receipt = self.locked.pop(which % len(self.locked))
        self.tree.unlock(receipt)
        self.model.unlock(expected)
        with pytest.raises(TreeError, match="unknown receipt"):
            self.tree.unlock(receipt)

    @rule(num_tokens=st.integers(0, 60))
    def evict(self, num_tokens: int) -> None:
        evictable, _ = self.model.sizes()
        freed = list(array("i", self.tree.evict(num_tokens)))
        assert freed == self.model.evict(num_tokens), "the same victims in the same order"
        assert len(freed) >= min(num_tokens, evictable)
        self.free += freed
        self.forget_gone()

    @precondition(lambda self: self.model.receipts)
    @rule()
    def reset_while_locked(self) -> None:
        with pytest.raises(TreeError, match="locks are held"):
            self.tree.reset()

    @precondition(lambda self: not self.model.receipts)
    @rule()
    def reset(self) -> None:
        freed = list(array("i", self.tree.reset()))
        assert sorted(freed) == sorted(self.model.reset())
        self.free += freed
        self.forget_gone()

    @rule()
    def drain(self) -> None:
        deltas = self.tree.drain_deltas()
        if deltas is not None:
            self.apply(deltas)
        assert self.tree.drain_deltas() is None
        assert self.replay.parents.keys() == self.model.blocks()

    def apply(self, deltas: Deltas) -> None:
        assert (deltas.stored, deltas.removed) == self.replay.apply(deltas.events)
        blocks = set(self.replay.parents)
        assert (deltas.count, deltas.digest) == (len(blocks), digest(blocks))

    @rule(max_blocks=st.integers(1, 7))
    def snapshot(self, max_blocks: int) -> None:
        replay = Replay()
        for chunk in self.tree.snapshot(max_blocks):
            stored, removed = replay.apply(chunk)
            assert 1 <= stored <= max_blocks
            assert removed == 0
        assert replay.parents.keys() == self.model.blocks()

    @invariant()
    def tree_is_sound_and_equals_the_model(self) -> None:
        self.tree.check()
        assert self.tree.dump() == self.model.dump()
        stats = self.tree.stats()
        assert (stats.evictable, stats.protected) == self.model.sizes()
        assert stats.tokens == len(self.model.all_slots()) == stats.evictable + stats.protected
        assert stats.nodes == len(self.model.ends)
        assert stats.locks == len(self.model.receipts)
        assert stats.evicted_total == self.model.evicted_total
        blocks = self.model.blocks()
        assert self.tree.count_digest() == (len(blocks), digest(blocks))
        assert sorted(self.free + self.model.all_slots()) == list(range(self.made))

    def teardown(self) -> None:
        """Every lock can be undone in any order, and then everything evicted."""
        while self.locked:
            self.unlock(0)
        assert self.tree.stats().protected == 0
        self.evict(self.tree.stats().tokens)
        assert self.tree.stats().nodes == 0
        self.drain()
        self.tree_is_sound_and_equals_the_model()


SIZES = [(1, 1), (1, 4), (2, 4), (4, 4), (4, 8), (16, 16)]


@pytest.mark.parametrize(("page_size", "block_size"), SIZES)
def test_tree_and_model_agree_on_any_operations(page_size: int, block_size: int) -> None:
    sizes = {"page_size": page_size, "block_size": block_size}
    # Shorter keys for small pages: what matters is how often they part.
    keys = st.lists(st.integers(0, 1 if page_size > 4 else 2), max_size=12 * page_size)
    machine = type("Machine", (TreeMachine,), {**sizes, "keys": keys})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
