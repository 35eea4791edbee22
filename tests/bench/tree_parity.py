"""Does our tree evict what SGLang 0.5.22 evicts? Hits and victims of both, policy by policy.

python -m tests.bench.tree_parity [--requests N] [--trace FILE], where `sglang==0.5.22` is
installed. With a trace, all of it by lru; without, workloads made up, by every policy.

Ours differs on purpose in one rule: the reference makes the lower part of a split as recent as
the upper one, although nobody used it. So the Python core runs a second time with that rule, and
must then hit and evict exactly as the reference does, slot by slot; what the rule alone changes is
seen beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radix_rs import derive_hash_key
from replica.py_tree import PyTree
from replica.py_tree.node import Node
from replica.py_tree.structure import Place
from tests.bench.tree_backends import SglangRaw, Small, make_tree, reference_backends
from tests.bench.tree_workloads import (
    VOCABULARY,
    Request,
    Slots,
    chats,
    made_requests,
    replay,
    trace_requests,
)

TLRU_TAIL = 4096
POLICIES: dict[str, dict[str, int]] = {
    "lru": {},
    "lfu": {},
    "slru": {"threshold": 2},
    "priority": {},
    "tlru": {"threshold": TLRU_TAIL},
    "fifo": {},
    "mru": {},
    "filo": {},
}


def priority_of(key: Any) -> int:
    """Any will do that both sides compute alike, and that differs from request to request."""
    return int(key[-1]) % 3 if len(key) else 0


class Reference(SglangRaw):
    def __init__(self, page_size: int, policy: str) -> None:
        super().__init__(page_size)
        params = self.b.TreeCoreInitParamsBinding(
            eviction_policy=policy, page_size=page_size, device="cpu", tlru_tail_budget=TLRU_TAIL
        )
        self.tree = self.b.RustUnifiedTreeCoreBinding(params, [0])
        self.root = self.tree.root_node_handle(None)

    def insert(self, key: Any, row: Slots, owned_from: int) -> tuple[int, list[Any]]:
        params = self.b.InsertParamsBinding(
            key=key,
            value=self.value(row[: len(key)]),
            prev_prefix_len=owned_from,
            priority=priority_of(key),
        )
        step = self.tree.begin_insert(params)
        return step.result.last_device_node, [t for action in step.actions for t in action[1]]


class Ours(Small):
    """Any core of ours, given the reference's priorities."""

    def __init__(self, tree: Any) -> None:
        super().__init__(1)
        self.tree = _WithPriorities(tree)  # type: ignore[assignment]

    def finish(self, key: Any, row: Slots, lock: int, owned_from: int) -> Slots:
        """In the reference's order, so that the pool gives both sides the same slots again."""
        freed = super().finish(key, row, lock, owned_from)
        tail = len(row) - len(key)
        return np.concatenate([freed[tail:], freed[:tail]])


class _WithPriorities:
    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def insert(self, key: Any, row: Slots, **claim: int) -> Any:
        return self.tree.insert(key, row, priority=priority_of(key), **claim)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tree, name)


class ReferenceSplits(PyTree):
    """The lower part of a split counts as used just before the path that split it."""

    def _settle(self, place: Place) -> Node:
        whole = place.within == len(place.node.tokens)
        end = super()._settle(place)
        if not whole:
            self._evictable.remove(place.node)
            self._clock += 1
            place.node.last_used = self._clock
            self._evictable.insert(place.node)
        return end


def forks(count: int, seed: int = 3) -> list[Request]:
    """Prompts that leave an earlier one anywhere: a split each, where that one is still cached."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, VOCABULARY, 500, dtype=np.uint32)]
    requests: list[Request] = []
    for _ in range(count):
        earlier = prompts[int(rng.integers(max(0, len(prompts) - 200), len(prompts)))]
        at = int(rng.integers(0, len(earlier)))
        rest = rng.integers(0, VOCABULARY, int(rng.integers(50, 500)), dtype=np.uint32)
        prompts.append(np.concatenate([earlier[:at], rest]))
        requests.append((prompts[-1], rng.integers(0, VOCABULARY, 40, dtype=np.uint32)))
    return requests


@dataclass
class Run:
    hit_rate: float
    hits: list[int]
    victims: list[bytes]
    """Slots, in the order in which they were evicted, of each call."""


def run(tree: Any, requests: list[Request], page_size: int, capacity: int) -> Run:
    victims: list[bytes] = []
    evict = tree.evict

    def recorded(count: int) -> Slots:
        freed: Slots = evict(count)
        victims.append(freed.tobytes())
        return freed

    tree.evict = recorded
    outcome = replay(tree, requests, page_size=page_size, capacity=capacity)
    return Run(sum(outcome.hits) / outcome.prompt_tokens, outcome.hits, victims)


@dataclass
class Compared:
    workload: str
    policy: str
    reference: Run
    ours: Run
    with_its_splits: Run

    @property
    def identical(self) -> bool:
        mine, its = self.with_its_splits, self.reference
        return mine.hits == its.hits and mine.victims == its.victims


@dataclass(frozen=True)
class Workload:
    name: str
    requests: list[Request]
    capacity: int
    policies: dict[str, dict[str, int]]


def whole_trace(path: Path) -> list[Workload]:
    with path.open() as lines:
        count = sum(1 for _ in lines)
    requests = trace_requests(path, count)
    only = {"lru": POLICIES["lru"]}
    return [
        Workload(f"{count:,} requests, {slots} slots", requests, capacity, only)
        for slots, capacity in (("1M", 1_000_000), ("3M", 3_000_000))
    ]


def made_up(requests: int) -> list[Workload]:
    workloads = [
        ("W1 made up", made_requests(requests), 500_000),
        ("W3 chats", chats(5 * requests), 50_000),
        ("forks", forks(20 * requests), 50_000),
    ]
    return [Workload(*workload, POLICIES) for workload in workloads]


def compare(workloads: list[Workload]) -> Iterator[Compared]:
    for workload in workloads:
        made, capacity = workload.requests, workload.capacity
        for page_size in (1, 16):
            for policy, options in workload.policies.items():
                arguments = {"policy": policy, "policy_options": options}
                python = ReferenceSplits(
                    page_size=page_size,
                    block_size=1 << 20,  # nothing to hash, which takes Python long
                    hash_key=derive_hash_key(b"bench"),
                    model="m",
                    **arguments,  # type: ignore[arg-type]
                )
                trees: list[Callable[[], Any]] = [
                    lambda page_size=page_size, policy=policy: Reference(page_size, policy),
                    lambda page_size=page_size, arguments=arguments: Ours(
                        make_tree(page_size, **arguments)
                    ),
                    lambda python=python: Ours(python),
                ]
                try:
                    runs = [run(make(), made, page_size, capacity) for make in trees]
                except ValueError as error:
                    print(f"{policy}: the reference's extension does not take it: {error}")
                    continue
                yield Compared(f"{workload.name}, page {page_size}", policy, *runs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tree_parity")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--trace", type=Path, help="a trace of Mooncake's")
    options = parser.parse_args()
    reference, note = reference_backends()
    if not reference:
        sys.exit(note)
    print("hit rates: reference / ours / ours with its splits; evictions; the last two against it")
    identical = True
    workloads = whole_trace(options.trace) if options.trace else made_up(options.requests)
    for one in compare(workloads):
        identical &= one.identical
        rates = [one.reference.hit_rate, one.ours.hit_rate, one.with_its_splits.hit_rate]
        print(
            f"{one.workload}, {one.policy:8}",
            *(f"{rate:.5f}" for rate in rates),
            len(one.reference.victims),
            "identical" if one.identical else "DIFFERENT",
            flush=True,
        )
    sys.exit(not identical)


if __name__ == "__main__":
    main()
