"""Both cores of the tree against the naive model, on random operations.

PREFIXLB_PYTHON_TREE_OPERATIONS says how many there are, about; each is followed by a comparison of
all that shows. `radix_rs/tests/tree_model.rs` does the same to the compiled core alone, a hundred
times as often. What must hold, and what finds it broken, there and here:

 1. parents and children agree; a child is found by its first page     check
 2. siblings differ in their first page; edges are whole pages         check
 3. a node has a slot for each token                                   check, dump
 4. slots are the tree's, a request's or free, each once               the sum of the three
 5. evictable and protected are the sums of unlocked and locked nodes  check, stats
 6. a node's locks are the receipts whose path covers it               check, dump
 7. exactly the unlocked leaves are evictable                          check, evict
 8. match finds the longest cached whole pages, and twice the same     match, peek
 9. what was inserted is matched; cached slots stay                    insert, dump
10. an insert gives back what it computed twice, each slot once        insert, checkpoint, finish
11. a split changes neither tokens, slots nor locks                    dump
12. evict frees enough and no leaf more, in the policy's order         evict
13. locks undone in any order leave nothing protected                  unlock, teardown
14. namespaces do not see each other                                   match, peek, dump
15. deltas rebuild the set of blocks; parents first, children go first drain, snapshot
16. handles and receipts of what is gone are refused, never come again keep, lock_what_is_gone
17. a path is as recent as its use, a deeper node more so              check (compiled), evict
18. a request counts once as a hit, however often it is stored         dump
19. both cores answer the same                                         BothCores
20. a tree that was reset is as new                                    reset, then all of the above
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proto.prefixlb.v1 import delta_pb2
from radix_rs import derive_hash_key
from replica.tree_core import Deltas
from replica.tree_error import TreeError
from tests.both_cores import BothCores, Handles
from tests.model import OPTIONS, PLAIN, End, Model, ModelError, Namespace

OPERATIONS = int(os.environ.get("PREFIXLB_PYTHON_TREE_OPERATIONS", "10000"))
STEPS = 50

KEY = derive_hash_key(b"a secret")
NAMESPACES: list[Namespace] = [PLAIN, ("a", "bc"), ("ab", "c"), ("", "abc")]
SIZES = [(1, 1), (1, 4), (2, 4), (4, 4), (4, 8), (16, 16), (64, 64)]


def digest(blocks: set[int]) -> int:
    return sum(blocks) % 2**64


@st.composite
def policies(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    policy = draw(st.sampled_from(list(OPTIONS)))
    options = draw(st.sets(st.sampled_from(sorted(OPTIONS[policy])))) if OPTIONS[policy] else set()
    most = 4 if policy == "slru" else 40
    return policy, {option: draw(st.integers(0, most)) for option in sorted(options)}


@dataclass
class Running:
    """A request between admission and end."""

    namespace: Namespace
    tokens: list[int]
    prompt_length: int
    slots: list[int]
    receipt: Handles
    model_receipt: int
    owned_from: int
    counted_to: int = 0


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
    """Does the same to the cores and the model, as requests would, and compares all that shows."""

    symbols = st.lists(st.integers(0, 1), max_size=20)
    namespaces = st.sampled_from(NAMESPACES)
    priorities = st.integers(-1, 1)

    @initialize(sizes=st.sampled_from(SIZES), policy=policies())
    def start(self, sizes: tuple[int, int], policy: tuple[str, dict[str, int]]) -> None:
        self.page_size, self.block_size = sizes
        arguments = {
            "page_size": self.page_size,
            "block_size": self.block_size,
            "hash_key": KEY,
            "model": "m",
            "policy": policy[0],
            "policy_options": policy[1],
        }
        self.tree = BothCores(**arguments)
        self.model = Model(**arguments)
        self.replay = Replay()
        self.free: list[int] = []
        self.made = 0
        self.handles: dict[End, Handles] = {}
        self.stale: set[Handles] = set()
        self.locked: list[tuple[int, Handles]] = []
        self.running: list[Running] = []

    def key(self, symbols: list[int]) -> list[int]:
        """Few symbols, each a third of a page, so that keys of large pages part often, anywhere."""
        return [symbol for symbol in symbols for _ in range(max(1, self.page_size // 3))]

    def allocate(self, count: int) -> list[int]:
        """Freed slots are used again, the last freed first."""
        while len(self.free) < count:
            self.free.append(self.made)
            self.made += 1
        taken, self.free = self.free[len(self.free) - count :], self.free[: len(self.free) - count]
        return taken

    def keep(self, node: End, handles: Handles) -> None:
        """A node keeps its handles, and no handle comes again."""
        assert handles not in self.stale
        assert self.handles.setdefault(node, handles) == handles

    def forget_gone(self) -> None:
        for node in [node for node in self.handles if not self.model.is_live(node)]:
            self.stale.add(self.handles.pop(node))

    @rule(symbols=symbols, namespace=namespaces)
    def match(self, symbols: list[int], namespace: Namespace) -> None:
        tokens = self.key(symbols)
        before = (self.tree.count_digest(), self.model.sizes())
        found = self.tree.match_prefix(tokens, namespace)
        length, node, slots = self.model.match_prefix(tokens, namespace)
        assert (found.length, found.slots) == (length, slots)
        assert before == (self.tree.count_digest(), self.model.sizes())

        nodes = self.tree.stats().nodes
        again = self.tree.match_without_slots(tokens, namespace)
        self.model.match_prefix(tokens, namespace)
        assert (again.length, again.node) == (length, found.node)
        assert self.tree.stats().nodes == nodes, "the second match splits nothing"
        self.keep(node, found.node)

    @rule(symbols=symbols, namespace=namespaces)
    def touch(self, symbols: list[int], namespace: Namespace) -> None:
        tokens = self.key(symbols)
        assert self.tree.touch(tokens, namespace) == self.model.match_prefix(tokens, namespace)[0]

    @rule(symbols=symbols, namespace=namespaces)
    def peek(self, symbols: list[int], namespace: Namespace) -> None:
        tokens = self.key(symbols)
        assert self.tree.peek(tokens, namespace) == self.model.peek(tokens, namespace)

    @rule(
        symbols=symbols,
        namespace=namespaces,
        owned=st.booleans(),
        counted=st.booleans(),
        priority=priorities,
    )
    def insert(
        self, symbols: list[int], namespace: Namespace, owned: bool, counted: bool, priority: int
    ) -> None:
        """As a request would: the slots of what it matched, its own for the rest."""
        tokens = self.key(symbols)
        _, _, held = self.model.match_prefix(tokens, namespace)
        self.tree.match_prefix(tokens, namespace)
        claim = {"owned_from": len(held) if owned else 0, "priority": priority}
        claim["counted_to"] = claim["owned_from"] if counted else 0
        slots = held[: claim["owned_from"]]
        slots += self.allocate(len(tokens) - len(slots))

        done = self.tree.insert(tokens, slots, namespace, **claim)
        expected = self.model.insert(tokens, slots, namespace=namespace, **claim)
        assert (done.prefix_length, done.duplicates) == (
            expected.prefix_length,
            expected.duplicates,
        )
        whole = len(tokens) - len(tokens) % self.page_size
        assert self.tree.match_prefix(tokens, namespace).length == whole
        self.model.match_prefix(tokens, namespace)
        for start, end in done.duplicates:
            self.free += slots[start:end]
        self.free += slots[whole:]
        self.keep(expected.node, done.node)

    @rule(symbols=symbols, namespace=namespaces, beyond=st.integers(1, 5))
    def insert_with_too_much_owned(
        self, symbols: list[int], namespace: Namespace, beyond: int
    ) -> None:
        tokens = self.key(symbols)
        owned_from = self.model.peek(tokens, namespace) + beyond
        slots = list(range(len(tokens)))
        try:
            self.model.insert(tokens, slots, owned_from=owned_from, namespace=namespace)
        except ModelError:
            with pytest.raises(TreeError, match="owned_from"):
                self.tree.insert(tokens, slots, namespace, owned_from=owned_from)
        else:  # all whole pages are held; the tail beyond them is nobody's concern
            self.tree.insert(tokens, slots, namespace, owned_from=owned_from)

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0))
    def lock(self, which: int) -> None:
        node, handles = list(self.handles.items())[which % len(self.handles)]
        self.locked.append((self.model.lock(node), self.tree.lock(handles)))

    @precondition(lambda self: self.stale)
    @rule()
    def lock_what_is_gone(self) -> None:
        for handles in self.stale:
            with pytest.raises(TreeError, match="unknown node"):
                self.tree.lock(handles)

    @precondition(lambda self: self.locked)
    @rule(which=st.integers(0))
    def unlock(self, which: int) -> None:
        expected, receipt = self.locked.pop(which % len(self.locked))
        self.tree.unlock(receipt)
        self.model.unlock(expected)
        with pytest.raises(TreeError, match="unknown receipt"):
            self.tree.unlock(receipt)

    @rule(symbols=symbols, namespace=namespaces)
    def admit(self, symbols: list[int], namespace: Namespace) -> None:
        tokens = self.key(symbols)
        admitted = self.tree.admit(tokens, namespace)
        length, node, slots = self.model.match_prefix(tokens, namespace)
        assert (admitted.length, admitted.slots) == (length, slots)
        self.keep(node, admitted.node)
        self.running.append(
            Running(
                namespace=namespace,
                tokens=tokens,
                prompt_length=len(tokens),
                slots=slots,
                receipt=admitted.receipt,
                model_receipt=self.model.lock(node),
                owned_from=length,
            )
        )

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0))
    def admit_again(self, which: int) -> None:
        """Somebody may have computed more of the prompt since."""
        request = self.running[which % len(self.running)]
        admitted = self.tree.admit(request.tokens, request.namespace, request.receipt)
        length, node, slots = self.model.match_prefix(request.tokens, request.namespace)
        assert (admitted.length, admitted.slots) == (length, slots)
        moved = self.model.lock(node)
        self.model.unlock(request.model_receipt)
        self.free += request.slots[request.owned_from :]
        request.receipt, request.model_receipt = admitted.receipt, moved
        request.slots, request.owned_from = slots, length

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), symbols=symbols, upto=st.integers(0, 30), priority=priorities)
    def checkpoint(self, which: int, symbols: list[int], upto: int, priority: int) -> None:
        """After a chunk of the prompt, or with output."""
        request = self.running[which % len(self.running)]
        request.tokens = request.tokens + self.key(symbols)
        tokens = request.tokens[: max(request.owned_from, upto * max(1, self.page_size // 3))]
        slots = request.slots + self.allocate(max(len(tokens) - len(request.slots), 0))
        claim = self.claim(request, priority)
        done = self.tree.checkpoint(tokens, slots, request.receipt, request.namespace, **claim)
        length, held, node, moved, freed = self.model.checkpoint(
            tokens, slots, request.model_receipt, namespace=request.namespace, **claim
        )
        assert (done.length, done.prefix_length, done.freed) == (length, held, freed)
        assert done.slots == slots
        with pytest.raises(TreeError, match="unknown receipt"):
            self.tree.unlock(request.receipt)
        self.keep(node, done.node)
        self.free += freed
        request.slots = slots
        request.receipt, request.model_receipt = done.receipt, moved
        request.owned_from = request.counted_to = length

    def claim(self, request: Running, priority: int) -> dict[str, int]:
        return {
            "owned_from": request.owned_from,
            "counted_to": request.counted_to,
            "prompt_length": request.prompt_length,
            "priority": priority,
        }

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), symbols=symbols, over=st.integers(0, 3), priority=priorities)
    def finish(self, which: int, symbols: list[int], over: int, priority: int) -> None:
        """With some slots more than tokens."""
        request = self.running.pop(which % len(self.running))
        tokens = request.tokens + self.key(symbols)
        missing = max(len(tokens) + over - len(request.slots), 0)
        slots = request.slots + self.allocate(missing)
        claim = self.claim(request, priority)
        freed = self.tree.finish(tokens, slots, request.receipt, request.namespace, **claim)
        expected = self.model.finish(
            tokens, slots, request.model_receipt, namespace=request.namespace, **claim
        )
        assert freed == expected
        self.free += freed
        with pytest.raises(TreeError, match="unknown receipt"):
            self.tree.finish(tokens, slots, request.receipt, request.namespace, **claim)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), beyond=st.integers(1, 100))
    def checkpoint_of_what_is_not_owned(self, which: int, beyond: int) -> None:
        request = self.running[which % len(self.running)]
        claim = self.claim(request, 0) | {"owned_from": request.owned_from + beyond}
        tokens = request.tokens[: request.owned_from + beyond // 2]
        slots = list(range(len(tokens)))
        held = self.model.peek(tokens, request.namespace)
        if held < claim["owned_from"]:
            with pytest.raises(TreeError, match=f"owned_from .*only {held} tokens"):
                self.tree.checkpoint(tokens, slots, request.receipt, request.namespace, **claim)

    @rule(num_tokens=st.integers(0, 60))
    def evict(self, num_tokens: int) -> None:
        evictable, _ = self.model.sizes()
        freed = self.tree.evict(num_tokens)
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
        freed = self.tree.reset()
        assert freed == sorted(self.model.reset())
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
        for chunks in self.tree.snapshots(max_blocks):
            replay = Replay()
            for chunk in chunks:
                stored, removed = replay.apply(chunk)
                assert 1 <= stored <= max_blocks
                assert removed == 0
            assert replay.parents.keys() == self.model.blocks()

    num_operations = 0
    """Of all machines."""

    @invariant()
    def tree_is_sound_and_equals_the_model(self) -> None:
        TreeMachine.num_operations += 1
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
        own = [slot for request in self.running for slot in request.slots[request.owned_from :]]
        assert sorted(self.free + own + self.model.all_slots()) == list(range(self.made))

    def teardown(self) -> None:
        """Every lock can be undone in any order, and then everything evicted."""
        while self.locked:
            self.unlock(0)
        while self.running:
            self.finish(0, [], 0, 0)
        assert self.tree.stats().protected == 0
        self.evict(self.tree.stats().tokens)
        assert self.tree.stats().nodes == 0
        self.drain()
        self.tree_is_sound_and_equals_the_model()


@pytest.mark.slow
def test_cores_and_model_agree_on_any_operations(capsys: pytest.CaptureFixture[str]) -> None:
    run_state_machine_as_test(
        TreeMachine,
        settings=settings(
            max_examples=max(OPERATIONS // STEPS, 1),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    with capsys.disabled():
        print(f"\nboth cores against model: {TreeMachine.num_operations} operations")
