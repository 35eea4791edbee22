"""Our tree against SGLang's compiled one, where it is installed; workloads and single calls.

python -m tests.bench.tree [--trace FILE] [--requests N] [--rounds N] [--json]: what is compared
runs in turns, in one process.
"""

import argparse
import gc
import json
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import tree_calls
from tests.bench.tree_backends import Fused, Small, reference_backends
from tests.bench.tree_workloads import (
    Outcome,
    Request,
    chats,
    made_requests,
    replay,
    shared_prompt,
    trace_requests,
)

MAKERS: list[Callable[[int], Any]] = [Fused, Small]
PAGES = 1, 16


@dataclass(frozen=True)
class Workload:
    name: str
    requests: list[Request]
    capacity: int


@dataclass(frozen=True)
class Total:
    """All calls on one tree in one workload, each call its median over the rounds.

    The rounds make the same calls, so that a call which the machine interrupted is not counted.
    """

    workload: str
    tree: str
    total_ms: float
    of_raw: float | None
    """Relative to the raw extension in the same rounds."""
    hit_rate: float
    mean_us: dict[str, float]
    """By call."""


@dataclass(frozen=True)
class Call:
    name: str
    us: float
    goal_us: float | None


def totals(
    workload: Workload, page: int, makers: list[Callable[[int], Any]], rounds: int
) -> list[Total]:
    times: dict[str, list[dict[str, list[int]]]] = {}
    outcomes: dict[str, Outcome] = {}
    for number in range(rounds):
        for make in makers if number % 2 == 0 else reversed(makers):
            tree = make(page)
            gc.collect()
            gc.disable()
            outcomes[tree.name] = replay(
                tree, workload.requests, page_size=page, capacity=workload.capacity
            )
            gc.enable()
            times.setdefault(tree.name, []).append(tree.times_ns)
    medians = {name: _median_calls(runs) for name, runs in times.items()}
    sums = {name: sum(map(sum, calls.values())) / 1e6 for name, calls in medians.items()}
    raw = next((ms for name, ms in sums.items() if "raw" in name), None)
    return [
        Total(
            workload=f"{workload.name}, page {page}",
            tree=name,
            total_ms=sums[name],
            of_raw=sums[name] / raw if raw else None,
            hit_rate=sum(outcomes[name].hits) / outcomes[name].prompt_tokens,
            mean_us={call: statistics.mean(ns) / 1e3 for call, ns in calls.items()},
        )
        for name, calls in medians.items()
    ]


def _median_calls(runs: list[dict[str, list[int]]]) -> dict[str, list[float]]:
    return {
        call: [statistics.median(times) for times in zip(*(run[call] for run in runs), strict=True)]
        for call in runs[0]
    }


def single_calls(rounds: int) -> list[Call]:
    measured: list[tuple[str, Callable[[], float], float | None]] = [
        (f"match {length:,} tokens", lambda length=length: tree_calls.match_us(length), goal)
        for length, goal in ((1, 0.3), (1024, 0.5), (16_384, 2.5), (65_536, 10.0))
    ]
    measured += [
        (f"match {n:,} tokens, slots written", lambda n=n: tree_calls.match_with_slots_us(n), None)
        for n in (1, 1024, 16_384, 65_536)
    ]
    measured += [
        (f"evict one of {n:,} leaves", lambda n=n: tree_calls.evict_us(n), 1.0)
        for n in (1000, 10_000, 100_000)
    ]
    measured += [
        ("split an edge of 16k", tree_calls.split_us, 3.0),
        ("match 1,024, one busy thread", tree_calls.match_beside_busy_thread_us, 5.0),
    ]
    return [
        Call(name, statistics.median(measure() for _ in range(rounds)), goal)
        for name, measure, goal in measured
    ]


def workloads(trace: Path | None, requests: int) -> list[Workload]:
    first = trace_requests(trace, requests) if trace else made_requests(requests)
    w1 = "W1 trace" if trace else "W1 made up"
    chat = chats(10_000)
    return [
        Workload(f"{w1}, 1M slots", first, 1_000_000),
        Workload(f"{w1}, 3M slots", first, 3_000_000),
        Workload("W2 one prompt, 400k slots", shared_prompt(2000), 400_000),
        Workload("W3 chats, 200k slots", chat, 200_000),
        Workload("W3 chats, 4M slots", chat, 4_000_000),
    ]


def show(results: list[Total], calls: list[Call], note: str) -> None:
    console = Console(width=160)
    table = Table(title=f"Tree workloads, {platform.processor() or platform.machine()}")
    for column in ("workload", "tree", "total ms", "of raw", "hit rate", "mean us by call"):
        table.add_column(column)
    for total in results:
        by_call = ", ".join(f"{call} {us:.1f}" for call, us in total.mean_us.items())
        of_raw = f"{total.of_raw:.3f}" if total.of_raw else ""
        table.add_row(
            total.workload,
            total.tree,
            f"{total.total_ms:.1f}",
            of_raw,
            f"{total.hit_rate:.4f}",
            by_call,
        )
    console.print(table)
    table = Table(title="Single calls, from Python")
    for column in ("call", "us", "goal us"):
        table.add_column(column)
    for call in calls:
        table.add_row(call.name, f"{call.us:.2f}", f"{call.goal_us:.1f}" if call.goal_us else "")
    console.print(table)
    if note:
        console.print(note)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tree")
    parser.add_argument("--trace", type=Path, help="a trace of Mooncake's; else one is made up")
    parser.add_argument("--requests", type=int, default=1000, help="of W1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name begins so; `calls`")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reference, note = reference_backends()
    results = [
        total
        for workload in workloads(options.trace, options.requests)
        if workload.name.startswith(options.only)
        for page in PAGES
        for total in totals(workload, page, MAKERS + reference, options.rounds)
    ]
    calls = single_calls(options.rounds) if options.only in ("", "calls") else []
    if options.json:
        print(
            json.dumps(
                {
                    "workloads": list(map(asdict, results)),
                    "calls": list(map(asdict, calls)),
                    "note": note,
                }
            )
        )
    else:
        show(results, calls, note)


if __name__ == "__main__":
    main()
