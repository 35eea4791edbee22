"""What a replica says of prompts it has accepted and not computed."""

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent
from radix_rs import HASH_VERSION, Router, chain_hashes, derive_hash_key
from replica.expected import ExpectedPrompts
from replica.models.interface import Batch, SlotPool
from tests.both_cores import u32
from tests.engine_rig import EngineRig
from tests.fakes import FakeClock, FakeModel

BLOCK = 16


def numbers(count: int, seed: int, below: int = 900) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(below) for _ in range(count)]


def chain(tokens: Sequence[int]) -> list[int]:
    key = derive_hash_key(b"secret")
    return chain_hashes(u32(tokens), hash_key=key, model="fake", block_size=BLOCK)


def batches(rig: EngineRig) -> list[DeltaBatch]:
    """All that were not taken yet."""
    taken = []
    while batch := rig.delta_log.take(heartbeat=False):
        rig.delta_log.sent(batch)
        taken.append(DeltaBatch.FromString(batch.payload))
    return taken


def kinds(batch: DeltaBatch) -> list[str | None]:
    return [event.WhichOneof("event") for event in batch.events]


class Watched(FakeModel):
    """Calls back in the middle of a step."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.during: Callable[[], None] = lambda: None

    def forward(self, batch: Batch, pool: SlotPool) -> torch.Tensor:
        self.during()
        return super().forward(batch, pool)


class Reader:
    """Follows the stream as delta.proto says, in sets."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.parents: dict[int, int] = {}
        self.expected: dict[int, list[int]] = {}

    def apply(self, events: Iterable[DeltaEvent]) -> None:
        for event in events:
            match event.WhichOneof("event"):
                case "stored":
                    before = event.stored.parent
                    for block in event.stored.hashes:
                        self.held.add(block)
                        self.parents[block] = before
                        before = block
                    self._end()
                case "removed":
                    block = event.removed.last
                    for _ in range(event.removed.count):
                        self.held.discard(block)
                        block = self.parents[block]
                case "expected":
                    self.expected.setdefault(event.expected.id, list(event.expected.hashes))
                    self._end()
                case "dropped":
                    self.expected.pop(event.dropped.id, None)
                case other:
                    raise AssertionError(other)

    def _end(self) -> None:
        over = [id for id, hashes in self.expected.items() if hashes[-1] in self.held]
        for id in over:
            del self.expected[id]


def test_a_prompt_is_announced_before_it_is_computed_with_a_load_that_counts_it() -> None:
    model = Watched()
    rig = EngineRig(model=model, chunk_size=512)
    prompt = numbers(100, seed=1)
    seen: list[DeltaBatch] = []
    model.during = lambda: seen.extend(batches(rig))
    rig.submit(prompt, 1)
    rig.run()
    told = seen[-1]
    assert kinds(told) == ["expected"]
    assert told.events[0].expected.start == 0
    assert list(told.events[0].expected.hashes) == chain(prompt)
    assert (told.load.waiting, told.load.pending_tokens) == (1, 100)
    assert (told.count, told.digest) == (0, 0)
    after = batches(rig)
    assert [kind for batch in after for kind in kinds(batch)] == ["stored"]


def test_only_whole_blocks_that_are_not_cached_are_announced() -> None:
    rig = EngineRig()
    prompt = numbers(100, seed=1)
    rig.generate(prompt[:40], 1)
    batches(rig)
    rig.submit(prompt, 1)
    rig.step()
    (event,) = [e.expected for b in batches(rig) for e in b.events if e.HasField("expected")]
    assert (event.start, list(event.hashes)) == (2, chain(prompt)[2:])
    rig.run()
    batches(rig)
    rig.generate(prompt[:99], 1)
    assert all("expected" not in kinds(batch) for batch in batches(rig))


def test_metrics_show_what_is_announced_and_still_waits() -> None:
    rig = EngineRig(chunk_size=32)

    def shown() -> tuple[float, float]:
        metrics = rig.metrics
        return metrics.announced_prompts._value.get(), metrics.announced_tokens._value.get()

    rig.generate(numbers(40, seed=1), 1)
    assert shown() == (0, 0)
    waiting = rig.submit(numbers(40, seed=1) + numbers(60, seed=2), 1)
    rig.submit(numbers(200, seed=3), 1)
    rig.step()
    assert shown() == (2, 60 + 200)
    rig.engine.leave(waiting)
    rig.step()
    assert shown() == (1, 200)
    rig.run()
    assert shown() == (0, 0)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_prompt_that_leaves_before_it_is_computed_is_dropped(steps: int) -> None:
    rig = EngineRig(chunk_size=32)
    request = rig.submit(numbers(200, seed=1), 5)
    for _ in range(steps):
        rig.step()
    reader = Reader()
    for batch in batches(rig):
        reader.apply(batch.events)
    assert len(reader.expected) == 1
    rig.engine.leave(request)
    rig.step()
    (batch,) = batches(rig)
    assert kinds(batch)[-1] == "dropped"
    reader.apply(batch.events)
    assert not reader.expected
    assert (batch.count, batch.digest) == rig.tree.count_digest()


def test_a_prompt_past_its_deadline_is_dropped() -> None:
    rig = EngineRig(chunk_size=32)
    rig.submit(numbers(300, seed=1), 5, timeout_s=0.015)
    rig.run()
    assert [kind for batch in batches(rig) for kind in kinds(batch)][-1] == "dropped"


def test_a_prompt_that_leaves_at_once_is_never_mentioned() -> None:
    rig = EngineRig()
    rig.engine.leave(rig.submit(numbers(200, seed=1), 5))
    rig.run()
    assert [kind for batch in batches(rig) for kind in kinds(batch)] == []


def test_an_announcement_costs_on_the_wire_what_its_blocks_cost() -> None:
    rig = EngineRig(chunk_size=4096)
    rig.generate(numbers(4000, seed=1), 1)
    sizes = {"expected": 0, "stored": 0}
    for batch in batches(rig):
        for event in batch.events:
            sizes[event.WhichOneof("event") or ""] += event.ByteSize()
    assert all(0.5 <= size / 4000 <= 0.51 for size in sizes.values())


@pytest.mark.parametrize("seed", range(4))
def test_readers_expect_what_waits_and_nothing_when_nothing_does(seed: int) -> None:
    """Under eviction, preemption, cancels and deadlines; by the stream and by a snapshot."""
    rng = random.Random(seed)
    rig = EngineRig(slots=400, chunk_size=32, max_running=4)
    reader = Reader()
    most = 0

    def follow() -> None:
        nonlocal most
        rig.step()
        snapshot = rig.engine.snapshot()
        for batch in batches(rig):
            reader.apply(batch.events)
        late = Reader()
        for chunk in snapshot.chunks:
            late.apply(DeltaBatch.FromString(chunk).events)
        assert late.held == reader.held
        # The late one alone expects what somebody else computed and what is evicted by now.
        assert late.expected.items() >= reader.expected.items()
        unfinished = [r for r in rig.scheduler if r.last_token_s is None]
        assert len(late.expected) <= len(unfinished)
        most = max(most, len(reader.expected))

    live = []
    for _ in range(120):
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            prompt = numbers(rng.randrange(0, 3) * 40, seed=0) + numbers(
                rng.randrange(1, 60), seed=rng.randrange(99)
            )
            timeout_s = rng.choice([None, None, 0.05])
            live.append(rig.submit(prompt, rng.randrange(1, 20), timeout_s=timeout_s))
        if live and rng.random() < 0.1:
            rig.engine.leave(live.pop(rng.randrange(len(live))))
        follow()
    while not rig.engine.is_idle:
        follow()
    follow()
    assert most > 1
    assert not reader.expected


def test_what_is_announced_at_a_time_is_bounded() -> None:
    rig = EngineRig()
    lengths = [40, 5, 17, 3, 2, 6]
    requests = [rig.submit(numbers(n * BLOCK, seed=n)) for n in lengths]

    def announced(prompts: ExpectedPrompts) -> list[int]:
        events = DeltaBatch.FromString(prompts.changes(announce=True)).events
        return [len(event.expected.hashes) for event in events if event.HasField("expected")]

    few = ExpectedPrompts(rig.tree, max_prompts=3)
    small = ExpectedPrompts(rig.tree, max_bytes=100)
    for request in requests:
        few.accept(request)
        small.accept(request)
    assert announced(few) == [40, 5, 17]
    assert announced(small) == [5, 3]
    rig.engine.leave(requests[1])
    late = rig.submit(numbers(4 * BLOCK, seed=4))
    for prompts in (few, small):
        prompts.accept(late)
        assert announced(prompts) == [4]


def test_while_nobody_takes_the_deltas_nothing_is_announced() -> None:
    rig = EngineRig(max_backlog_bytes=2000, max_running=1)
    rig.submit(numbers(150 * BLOCK, seed=1), 1)
    rig.step()
    assert rig.delta_log.is_behind
    rig.submit(numbers(100, seed=2), 1)
    rig.step()
    assert sum(kinds(batch).count("expected") for batch in batches(rig)) == 1


def test_without_a_cache_nothing_is_announced() -> None:
    rig = EngineRig(disable_cache=True)
    rig.generate(numbers(200, seed=1), 3)
    assert all(not batch.events for batch in batches(rig))


def test_a_router_expects_what_an_engine_announces() -> None:
    """The compiled reader on the engine's own bytes."""
    rig = EngineRig(chunk_size=32)
    router = Router(hash_key=derive_hash_key(b"secret"))
    router.add_replica("r0", model="fake", block_size=BLOCK)
    snapshot = rig.engine.snapshot()
    position = snapshot.position
    start = DeltaBatch(
        epoch=position.epoch, seq=position.seq, block_size=BLOCK, hash_version=HASH_VERSION
    )
    router.apply_snapshot("r0", start.SerializeToString(), True)
    batches(rig)
    prompt = numbers(100, seed=1)

    def look() -> tuple[int, int]:
        (candidate,) = router.explain(u32(prompt), model="fake", now_s=0.0)
        return candidate.matched, candidate.expected

    def follow() -> None:
        for batch in batches(rig):
            assert router.apply("r0", batch.SerializeToString()).outcome == "applied"

    request = rig.submit(prompt, 5)
    rig.step()
    follow()
    assert look() == (32, 96)
    rig.engine.leave(request)
    rig.step()
    follow()
    assert look() == (32, 32)
