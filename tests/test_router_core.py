"""The compiled router against naive sets, fed with batches that protoc's messages write."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proto.prefixlb.v1 import delta_pb2
from radix_rs import (
    HASH_VERSION,
    Router,
    RouterError,
    Rules,
    Tree,
    chain_hashes,
    derive_hash_key,
)
from tests.index_model import BLOCK_SIZE, MirrorModel, Publisher, digest, matched

KEY = derive_hash_key(b"a secret")
MODEL = "m"
USUAL = Rules()
REPLICAS = ["r0", "r1", "r2"]


def u32(tokens: Sequence[int]) -> array[int]:
    return array("I", tokens)


def chain(tokens: Sequence[int]) -> list[int]:
    return chain_hashes(u32(tokens), hash_key=KEY, model=MODEL, block_size=BLOCK_SIZE)


def fleet(names: Sequence[str] = REPLICAS, rules: Rules = USUAL, seed: int = 0) -> Router:
    """A router of eligible replicas that are at epoch 1 and hold nothing."""
    router = Router(hash_key=KEY, rules=rules, seed=seed)
    for name in names:
        router.add_replica(name, model=MODEL, block_size=BLOCK_SIZE)
        router.set_eligible(name, True)
        resync(router, name, Publisher(epoch=1))
    return router


def resync(router: Router, name: str, publisher: Publisher, blocks_per_chunk: int = 3) -> None:
    router.clear(name)
    chunks = publisher.snapshot(blocks_per_chunk)
    for chunk in chunks[:-1]:
        assert router.apply_snapshot(name, chunk.SerializeToString(), False).outcome == "applied"
    assert router.apply_snapshot(name, chunks[-1].SerializeToString(), True).outcome == "applied"


def browsed(router: Router, name: str, below: int | None = None) -> int:
    """Blocks of a mirror, by its branches, two at a time."""
    blocks, start = 0, None
    while True:
        page = router.branches(name, below=below, start=start, limit=2)
        assert len(page.branches) <= 2
        for branch in page.branches:
            deeper = browsed(router, name, branch.first)
            assert branch.blocks_below == deeper if branch.all_below else branch.blocks_below
            blocks += branch.blocks + deeper
        if (start := page.next) is None:
            return blocks


prompts = st.lists(st.integers(0, 1), max_size=28).map(lambda bits: [0] * 8 + bits)
replicas = st.sampled_from(REPLICAS)


class Fleet(RuleBasedStateMachine):
    """Publishers, what is under way of their batches, and a router beside its model.

    The way loses, repeats and reorders batches. Nobody resyncs until `resync` or the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = fleet()
        self.epoch = 1
        self.publishers = {name: Publisher(epoch=1) for name in REPLICAS}
        self.mirrors = {name: MirrorModel(epoch=1) for name in REPLICAS}
        self.under_way: dict[str, list[delta_pb2.DeltaBatch]] = {name: [] for name in REPLICAS}

    def publish(self, name: str, *events: delta_pb2.DeltaEvent) -> None:
        self.under_way[name].append(self.publishers[name].batch(*events))

    @rule(name=replicas, tokens=prompts)
    def stores(self, name: str, tokens: list[int]) -> None:
        self.publish(name, self.publishers[name].store(chain(tokens)))

    @rule(name=replicas, which=st.integers(0, 9), count=st.integers(1, 9), tokens=prompts)
    def evicts_and_stores(self, name: str, which: int, count: int, tokens: list[int]) -> None:
        publisher = self.publishers[name]
        leaves = publisher.leaves()
        evicted = [publisher.evict(leaves[which % len(leaves)], count)] if leaves else []
        self.publish(name, *evicted, publisher.store(chain(tokens)))

    @rule(name=replicas, which=st.integers(0, 9), count=st.integers(1, 9))
    def evicts(self, name: str, which: int, count: int) -> None:
        publisher = self.publishers[name]
        if leaves := publisher.leaves():
            self.publish(name, publisher.evict(leaves[which % len(leaves)], count))

    @rule(name=replicas)
    def clears(self, name: str) -> None:
        self.publish(name, self.publishers[name].clear())

    @rule(name=replicas)
    def restarts(self, name: str) -> None:
        self.epoch += 1
        self.publishers[name] = Publisher(epoch=self.epoch)
        self.publish(name)

    @rule(name=replicas, number=st.integers(1, 5))
    def delivers(self, name: str, number: int) -> None:
        for batch in self.under_way[name][:number]:
            self.deliver(name, batch)
        del self.under_way[name][:number]

    @rule(name=replicas)
    def repeats(self, name: str) -> None:
        for batch in self.under_way[name][:1]:
            self.deliver(name, batch)

    @rule(name=replicas)
    def loses(self, name: str) -> None:
        del self.under_way[name][:1]

    @rule(name=replicas)
    def reorders(self, name: str) -> None:
        self.under_way[name].reverse()

    @rule(name=replicas)
    def resyncs(self, name: str) -> None:
        publisher, mirror = self.publishers[name], self.mirrors[name]
        resync(self.router, name, publisher)
        mirror.clear()
        mirror.epoch, mirror.seq = publisher.epoch, publisher.seq
        mirror.blocks.update(publisher.parents)
        mirror.parents.update(publisher.parents)

    @rule(name=replicas)
    def leaves_and_joins(self, name: str) -> None:
        self.router.remove_replica(name)
        self.router.add_replica(name, model=MODEL, block_size=BLOCK_SIZE)
        self.router.set_eligible(name, True)
        self.mirrors[name].clear()

    @rule(tokens=prompts, excluded=replicas)
    def picks(self, tokens: list[int], excluded: str) -> None:
        found = {
            name: matched(self.mirrors[name].blocks, chain(tokens)) * BLOCK_SIZE
            for name in REPLICAS
        }
        pick = self.router.pick(u32(tokens), model=MODEL, exclude=[excluded], now_s=0.0)
        assert pick is not None
        assert pick.replica != excluded
        assert pick.matched == found[pick.replica]
        assert pick.available == max(found[name] for name in REPLICAS if name != excluded)
        candidates = self.router.explain(u32(tokens), model=MODEL, now_s=0.0)
        assert [(c.replica, c.matched) for c in candidates] == list(found.items())
        assert all(c.expected >= c.matched for c in candidates)
        whole = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
        assert next(c.expected for c in candidates if c.replica == pick.replica) == whole
        self.router.release(pick.ticket)

    def deliver(self, name: str, batch: delta_pb2.DeltaBatch) -> None:
        applied = self.router.apply(name, batch.SerializeToString())
        assert applied.outcome == self.mirrors[name].apply(batch)
        assert (applied.epoch, applied.seq) == (batch.epoch, batch.seq)

    @invariant()
    def browsed_page_by_page_every_block_is_found_once(self) -> None:
        for name, mirror in self.mirrors.items():
            assert browsed(self.router, name) == len(mirror.blocks)

    @invariant()
    def mirrors_equal_their_models(self) -> None:
        self.router.check()
        for name, model in self.mirrors.items():
            mirror = self.router.mirror(name)
            assert (mirror.epoch, mirror.seq) == (model.epoch, model.seq)
            assert (mirror.count, mirror.digest) == (len(model.blocks), digest(model.blocks))
            assert self.router.blocks(name) == sorted(model.blocks)
            assert self.router.in_flight(name) == 0

    def teardown(self) -> None:
        """One heartbeat each tells whether to resync; after it every mirror is its tree."""
        for name, publisher in self.publishers.items():
            heartbeat = publisher.batch()
            if self.router.apply(name, heartbeat.SerializeToString()).outcome != "applied":
                resync(self.router, name, publisher)
            assert self.router.blocks(name) == sorted(publisher.parents)
            assert self.router.mirror(name).seq == publisher.seq


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_every_field_of_a_batch_reaches_the_router() -> None:
    router = fleet(["r0"])
    held = chain(range(16))
    load = delta_pb2.Load(
        running=3,
        waiting=5,
        pending_tokens=2 * 10 + 3 * 5000,
        classes=[
            delta_pb2.LoadClass(log2=3, requests=2, tokens=20),
            delta_pb2.LoadClass(log2=12, requests=3, tokens=15000),
        ],
        order=delta_pb2.PREFILL_ORDER_SHORTEST,
        free_slots=1 << 33,
        evictable_slots=7,
        total_slots=1 << 34,
    )
    batch = delta_pb2.DeltaBatch(
        epoch=1,
        seq=1,
        block_size=BLOCK_SIZE,
        hash_version=HASH_VERSION,
        events=[
            delta_pb2.DeltaEvent(stored=delta_pb2.Stored(hashes=[1])),
            delta_pb2.DeltaEvent(cleared=delta_pb2.Cleared()),
            delta_pb2.DeltaEvent(stored=delta_pb2.Stored(hashes=held[:2])),
            delta_pb2.DeltaEvent(stored=delta_pb2.Stored(parent=held[1], hashes=held[2:])),
            delta_pb2.DeltaEvent(removed=delta_pb2.Removed(last=held[3], count=2)),
        ],
        load=load,
        count=2,
        digest=digest(held[:2]),
    )
    applied = router.apply("r0", batch.SerializeToString())
    assert (applied.outcome, applied.epoch, applied.seq) == ("applied", 1, 1)
    assert (applied.stored, applied.removed) == (5, 3)
    assert router.blocks("r0") == sorted(held[:2])
    got = router.load("r0")
    assert (got.running, got.waiting, got.pending_tokens) == (3, 5, 15020)
    assert (got.free_slots, got.evictable_slots, got.total_slots) == (1 << 33, 7, 1 << 34)
    assert not got.draining

    (candidate,) = router.explain(u32(range(100, 200)), model=MODEL, now_s=0.0)
    assert (candidate.ahead, candidate.delayed_requests) == (20, 3)
    assert (candidate.decode_pressure, candidate.cost) == (3, 20 + 100 * (1.75 + 3) + 3)

    batch.load.order = delta_pb2.PREFILL_ORDER_FCFS
    batch.load.draining = True
    batch.seq = 2
    batch.ClearField("events")
    router.apply("r0", batch.SerializeToString())
    assert router.load("r0").draining
    (candidate,) = router.explain(u32(range(100, 200)), model=MODEL, now_s=0.0)
    assert (candidate.ahead, candidate.delayed_requests) == (15020, 0)
    assert not candidate.eligible
    assert router.pick(u32([1]), model=MODEL, now_s=0.0) is None


def test_events_of_a_later_version_are_passed_over_and_show_in_the_digest() -> None:
    router = fleet(["r0"])
    unknown = delta_pb2.DeltaEvent.FromString(b"\xa2\x06\x03abc")  # field 100
    batch = Publisher(epoch=1).batch(unknown)
    assert router.apply("r0", batch.SerializeToString()).outcome == "applied"
    wrong = Publisher(epoch=1, seq=1, parents={1: 0}).batch(unknown)
    assert router.apply("r0", wrong.SerializeToString()).outcome == "mismatch"


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 60)), max_size=25
    )
)
def test_a_mirror_fed_by_the_compiled_tree_equals_it(steps: list[tuple[list[int], int]]) -> None:
    tree = Tree(page_size=1, block_size=BLOCK_SIZE, hash_key=KEY, model=MODEL)
    router = fleet(["r0"])
    seq = 0
    for tokens, evict in steps:
        tree.insert(u32(tokens), array("i", range(len(tokens))))
        tree.evict(evict)
        if (deltas := tree.drain_deltas()) is None:
            continue
        seq += 1
        header = delta_pb2.DeltaBatch(
            epoch=1,
            seq=seq,
            block_size=BLOCK_SIZE,
            hash_version=HASH_VERSION,
            count=deltas.count,
            digest=deltas.digest,
        )
        applied = router.apply("r0", header.SerializeToString() + deltas.events)
        assert applied.outcome == "applied"
        router.check()
        cached = tree.peek(u32(tokens)) // BLOCK_SIZE * BLOCK_SIZE
        (candidate,) = router.explain(u32(tokens), model=MODEL, now_s=0.0)
        assert candidate.matched == cached


@given(data=st.binary(max_size=80), last=st.booleans())
def test_random_bytes_are_refused_or_applied_but_never_crash(data: bytes, last: bool) -> None:
    router = fleet(["r0"])
    for call in (router.apply, lambda name, data: router.apply_snapshot(name, data, last)):
        try:
            call("r0", data)
        except RouterError:
            assert router.blocks("r0") == []
        router.clear("r0")
    router.check()


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_damaged_batches_never_crash_or_corrupt(cut: int, flip: int, bit: int) -> None:
    router = fleet(["r0"])
    publisher = Publisher(epoch=1)
    data = bytearray(publisher.batch(publisher.store(chain(range(80)))).SerializeToString())
    data[flip % len(data)] ^= 1 << bit
    try:
        router.apply("r0", bytes(data[: cut % len(data)]) if cut % 2 else bytes(data))
    except RouterError:
        assert router.blocks("r0") == []
    router.check()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("epoch", 0, ["epoch 0"]),
        ("seq", 0, ["seq 0"]),
        ("block_size", 16, ["16", str(BLOCK_SIZE)]),
        ("hash_version", HASH_VERSION + 1, [str(HASH_VERSION + 1), str(HASH_VERSION)]),
    ],
)
def test_a_batch_of_another_kind_is_refused_with_both_values(
    field: str, value: int, words: list[str]
) -> None:
    router = fleet(["r0"])
    publisher = Publisher(epoch=1)
    batch = publisher.batch(publisher.store(chain(range(40))))
    batch.load.running = 9
    setattr(batch, field, value)
    with pytest.raises(RouterError) as refused:
        router.apply("r0", batch.SerializeToString())
    assert all(word in str(refused.value) for word in ["r0", *words])
    assert (router.mirror("r0").seq, router.blocks("r0"), router.load("r0").running) == (0, [], 0)


def test_wrong_arguments_are_refused_with_the_value() -> None:
    with pytest.raises(ValueError, match=r"'best'|\"best\""):
        Rules(policy="best")
    for setting in ("uncached_weight", "decode_weight"):
        for value in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=setting):
                Rules(**{setting: value})  # type: ignore[arg-type]
    router = fleet(["r0"])
    strided = memoryview(u32([1, 2, 3]))[::2]
    for tokens in (b"abcd", [1, 2], array("i", [1]), array("Q", [1]), strided):
        with pytest.raises(RouterError, match="tokens"):
            router.pick(tokens, model=MODEL, now_s=0.0)  # type: ignore[arg-type]
    for call in (router.clear, router.mirror, router.load, router.blocks, router.in_flight):
        with pytest.raises(RouterError, match="ghost"):
            call("ghost")
    with pytest.raises(RouterError, match="ghost"):
        router.apply("ghost", Publisher(epoch=1).batch().SerializeToString())
    with pytest.raises(RouterError, match="r0"):
        router.add_replica("r0", model=MODEL, block_size=BLOCK_SIZE)
    router.remove_replica("ghost")
    router.prefilled(77)
    router.release(77)


def test_nothing_matches_across_models_and_namespaces() -> None:
    router = fleet(["r0"])
    router.add_replica("other", model="n", block_size=BLOCK_SIZE)
    router.set_eligible("other", True)
    publisher = Publisher(epoch=1)
    tokens = range(40)
    router.apply("r0", publisher.batch(publisher.store(chain(tokens))).SerializeToString())

    def pick(model: str = MODEL, extra_key: str = "", cache_salt: str = "") -> tuple[str, int]:
        found = router.peek(
            u32(tokens),
            model=model,
            extra_key=extra_key,
            cache_salt=cache_salt,
            now_s=0.0,
        )
        assert found is not None
        return found.replica, found.available

    assert pick() == ("r0", 40)
    assert pick(model="n") == ("other", 0)
    assert pick(extra_key="x") == pick(cache_salt="x") == ("r0", 0)
    assert router.pick(u32(tokens), model="nobody's", now_s=0.0) is None
    assert router.explain(u32(tokens), model="nobody's", now_s=0.0) == []


@pytest.mark.parametrize("length", [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_prompts_shorter_than_a_block_are_picked_for(length: int) -> None:
    router = fleet()
    pick = router.pick(u32([5] * length), model=MODEL, now_s=0.0)
    assert pick is not None
    assert (pick.matched, pick.available, pick.reason) == (0, 0, "cold")
    assert router.in_flight(pick.replica) == 1
    router.release(pick.ticket)
    assert sum(map(router.in_flight, REPLICAS)) == 0


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_load"])
def test_policies_that_ignore_prefixes_say_so_and_report_what_they_missed(policy: str) -> None:
    router = fleet(rules=Rules(policy=policy), seed=3)
    publisher = Publisher(epoch=1)
    tokens = range(40)
    router.apply("r1", publisher.batch(publisher.store(chain(tokens))).SerializeToString())
    picks = [router.pick(u32(tokens), model=MODEL, now_s=0.0) for _ in range(30)]
    assert {pick.replica for pick in picks if pick} == set(REPLICAS)
    for pick in picks:
        assert pick is not None
        assert pick.reason == "policy"
        assert pick.available == 40
        assert pick.matched == (40 if pick.replica == "r1" else 0)


def test_picks_go_on_while_another_thread_applies_large_snapshots() -> None:
    router = fleet()
    rng = random.Random(1)
    publisher = Publisher(epoch=1, parents={rng.getrandbits(64) | 1: 0 for _ in range(30_000)})
    chunk = publisher.snapshot(30_000)[0].SerializeToString()
    outcomes = []

    def sync() -> None:
        for _ in range(5):
            router.clear("r0")
            outcomes.append(router.apply_snapshot("r0", chunk, True).outcome)

    thread = threading.Thread(target=sync)
    thread.start()
    picks = 0
    while thread.is_alive():
        pick = router.pick(u32(range(400)), model=MODEL, now_s=0.0)
        assert pick is not None
        router.release(pick.ticket)
        picks += 1
    thread.join()
    assert outcomes == ["applied"] * 5
    assert picks > 0
    assert router.mirror("r0").count == 30_000
