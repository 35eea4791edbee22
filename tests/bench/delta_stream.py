"""How soon deltas arrive, and what they cost: real replicas, a real Redis, a real router."""

import array
import asyncio
import random
import statistics
import time

import numpy as np

from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent
from radix_rs import Router, Tree, derive_hash_key
from tests.bench.delta_path import STAGES, Sending, Way, mean_stages, ways
from tests.bench.machine import busy_percent, core_seconds
from tests.bench.row import Row
from tests.bench.timed_cluster import converse, timed_cluster
from tests.conftest import smollm2_file
from tests.tiny_model import VOCAB_SIZE

LOAD_S = 15.0


def propagation(rounds: int) -> list[Row]:
    """From a tree's change to the mirror that has it, and what the wire carries for it."""
    return [
        *_propagation(rounds, "tree change to router", asleep=False),
        *_propagation(rounds, "models asleep", asleep=True),
    ]


def _propagation(rounds: int, what: str, *, asleep: bool) -> list[Row]:
    found: list[list[Way]] = []
    bare: list[list[float]] = []
    sizes: list[dict[str, float]] = []
    busy: list[float] = []
    for seed in range(rounds):
        with timed_cluster(
            model=None, replicas=3, with_router=True, slots=4096, asleep=asleep
        ) as running:
            address = running.routers[0].address
            before = core_seconds()
            asyncio.run(converse(address, vocabulary=VOCAB_SIZE, seed=seed, seconds=LOAD_S))
            busy.append(busy_percent(before, core_seconds()))
            measured = running.end()
        found.append(
            [
                way
                for child, replica in zip(running.replicas, measured.replicas, strict=True)
                for way in ways(
                    replica["changes"],
                    (Sending(*each) for each in replica["sendings"]),
                    measured.batches[child.name],
                )
            ]
        )
        bare.append(measured.bare_ms)
        sizes.append(wire_bytes([each.batch for all in measured.batches.values() for each in all]))
    totals = [[way.total_ms for way in each] for each in found]
    return [
        Row(f"{what}, p50 ms", [_percentile(each, 50) for each in totals], 15),
        Row(f"{what}, bare p50 ms", [_percentile(each, 50) for each in bare], None),
        *_stages(f"{what}, middle fifth", found, 40, 60),
        Row(f"{what}, p99 ms", [_percentile(each, 99) for each in totals], 50),
        Row(f"{what}, bare p99 ms", [_percentile(each, 99) for each in bare], None),
        *_stages(f"{what}, slowest 2 %", found, 98, 100),
        Row(f"{what}, changes", [float(len(each)) for each in found], None),
        Row(f"{what}, use of the cores in %", busy, None),
        *(
            Row(f"short turns: bytes of {which}", [each[kind] for each in sizes], None)
            for which, kind in (
                ("stored, a token stored", "stored"),
                ("removed, a token removed", "removed"),
                ("announced, a token stored", "expected"),
                ("everything, a token stored", "all"),
            )
            if not asleep
        ),
    ]


def _stages(of_which: str, found: list[list[Way]], first: int, last: int) -> list[Row]:
    by_round = [mean_stages(each, first, last) for each in found]
    return [
        Row(f"  {of_which}: {stage}", list(values), None)
        for stage, values in zip(STAGES, zip(*by_round, strict=True), strict=True)
    ]


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def wire_bytes(batches: list[bytes]) -> dict[str, float]:
    """Bytes of events by kind, and of everything, for each token (of 16 in a block)."""
    blocks, kinds = {"stored": 0, "removed": 0}, {"stored": 0, "removed": 0, "expected": 0}
    for data in batches:
        for event in DeltaBatch.FromString(data).events:
            kind = event.WhichOneof("event")
            kinds["expected" if kind == "dropped" else kind] += _size(event)
            if kind == "stored":
                blocks["stored"] += len(event.stored.hashes)
            elif kind == "removed":
                blocks["removed"] += event.removed.count
    return {
        "stored": kinds["stored"] / (16 * blocks["stored"]),
        "removed": kinds["removed"] / (16 * blocks["removed"]),
        "expected": kinds["expected"] / (16 * blocks["stored"]),
        "all": sum(map(len, batches)) / (16 * blocks["stored"]),
    }


def conversations(rounds: int) -> list[Row]:
    """Bytes of a tree's events for prompts and answers as long as in Mooncake's traces."""
    sizes = []
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        tree = Tree(hash_key=derive_hash_key(b""), model="m")
        batches: list[bytes] = []
        prompts: list[np.ndarray] = []
        for _ in range(1500):
            if rng.random() < 0.4 and prompts:
                prompt = prompts.pop(int(rng.integers(len(prompts))))
            else:
                prompt = np.zeros(0, np.uint32)
            asked, answered = _lengths(rng, 6000), _lengths(rng, 340)
            for count in (asked, answered):
                prompt = np.concatenate((prompt, rng.integers(0, 50_000, count, np.uint32)))
                slots = np.zeros(len(prompt), np.int32)
                held = tree.peek(prompt.data)
                shortfall = tree.stats().tokens + len(prompt) - held - 1_000_000
                if shortfall > 0:
                    tree.evict(shortfall)
                tree.insert(prompt.data, slots.data)
                if deltas := tree.drain_deltas():
                    batches.append(deltas.events)
            prompts.append(prompt)
        sizes.append(wire_bytes(batches))
    return [
        Row("wire bytes a stored token", [each["stored"] for each in sizes], 0.55),
        Row("wire bytes an evicted token", [each["removed"] for each in sizes], 0.1),
    ]


def _lengths(rng: np.random.Generator, mean: float) -> int:
    return 1 + int(rng.exponential(mean))


def _size(event: DeltaEvent) -> int:
    return len(DeltaBatch(events=[event]).SerializeToString())


def publishing(rounds: int) -> list[Row]:
    """CPU of publishing as a share of the step's, where a step is a real model's."""
    in_step, with_thread = [], []
    for seed in range(rounds):
        with timed_cluster(
            model=smollm2_file(), replicas=1, with_router=False, slots=16384
        ) as running:
            address = running.replicas[0].address
            asyncio.run(converse(address, vocabulary=49_000, seed=seed, seconds=LOAD_S))
            measured = running.end().replicas[0]
        in_step.append(100 * measured["in_step_s"] / measured["step_s"])
        both_s = measured["in_step_s"] + measured["publisher_s"]
        with_thread.append(100 * both_s / measured["step_s"])
    return [
        Row("publishing in the step, % of its CPU", in_step, 1),
        Row("  with the publisher's thread", with_thread, None),
    ]


def hashing(rounds: int) -> list[Row]:
    """As in a pick, which hashes once; the pick of one block is taken off."""
    router = Router(hash_key=derive_hash_key(b"secret"))
    router.add_replica("r0", model="m", block_size=16)
    router.set_eligible("r0", True)

    def best_us(count: int) -> float:
        tokens = array.array("I", random.choices(range(50_000), k=count))

        def once_us() -> float:
            began_ns = time.perf_counter_ns()
            router.peek(tokens, model="m", now_s=0.0)
            return (time.perf_counter_ns() - began_ns) / 1000

        return min(once_us() for _ in range(1000))

    hashed = [best_us(16_384) - best_us(16) for _ in range(rounds)]
    return [Row("keyed chain hash of 16,384 ids, us", hashed, 20)]
