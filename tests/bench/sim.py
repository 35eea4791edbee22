"""Our pick beside the rules of other routers, on simulated replicas, all in one run.

python -m tests.bench.sim [--trace FILE] [--seed N] [--json]: the trace is one of Mooncake's, of
conversations; without one, such are made. The peers' rules (sim_peers.py) see the replicas as they
are; ours knows what batches tell it. Goals are for that trace.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from radix_rs import simulate_picker
from router.cli.sim import tenants, trace_file
from router.cli.sim.fleet import Fleet, Result, simulate
from router.cli.sim.workload import Workload
from tests.bench.sim_peers import PEERS
from tests.bench.sim_traces import conversations

REPLICAS, TOKENS_PER_S = 8, 20_000.0
WHOLE = 10**9
"""Chunk of an engine that computes a prompt without a break."""

AT_MOST, AT_LEAST = "at most", "at least"


@dataclass(frozen=True)
class Row:
    """A workload on a fleet, and the goals for ours: hit rate, mean and p99 of the first token."""

    name: str
    workload: Workload
    fleet: Fleet
    hit_rate: float | None = None
    mean_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    ours: float
    peer: float | None
    """The best one's."""
    goal: float | None
    kind: str

    @property
    def ok(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ours >= self.goal if self.kind == AT_LEAST else self.ours <= self.goal

    def as_json(self) -> dict[str, float | bool | None]:
        ratio = self.ours / self.peer if self.peer else None
        found = {"ours": self.ours, "peer": self.peer, "ratio": ratio, "goal": self.goal}
        return {**found, "ok": self.ok}


def rows(conversation: Workload, seed: int) -> Iterator[Row]:
    fleet = Fleet(replicas=REPLICAS, prefill_tokens_per_s=TOKENS_PER_S, lag_s=0.0, seed=0)
    busy = at(conversation, 0.9)
    made = at(tenants.make(tenants.REQUESTS, 60, 512, seed), 5.0)
    fcfs = replace(fleet, order="fcfs", chunk_tokens=WHOLE)
    yield Row("conversations 0.9", busy, fleet, 0.257, 0.56, 4.5)
    yield Row("conversations 1.2", at(conversation, 1.2), fleet, 0.257, 0.70, 6.2)
    yield Row("tenants 5x", made, replace(fleet, cache_tokens=500_000), 0.915, 0.075, 0.50)
    yield Row("conversations 0.9, fcfs engines", busy, fcfs, 0.235, 0.75, 4.5)
    spread = at(conversation.spread(3.0, seed), 0.9)
    yield Row("conversations 0.9, spread", spread, fleet, None, 0.51, None)


def at(workload: Workload, utilisation: float) -> Workload:
    return workload.faster(utilisation / workload.utilisation(REPLICAS * TOKENS_PER_S))


def peers(row: Row) -> dict[str, Result]:
    trace, fleet = row.workload.trace(), row.fleet
    return {
        name: Result.of(
            simulate_picker(
                trace, fleet.model(), rule(row.workload, fleet.replicas, fleet.cache_tokens)
            )
        )
        for name, rule in PEERS.items()
    }


def compare(row: Row, ours: Result, theirs: dict[str, Result]) -> list[Figure]:
    hit_rate = max(result.hit_rate for result in theirs.values())
    mean_s = min(result.ttft_mean_s for result in theirs.values())
    p99_s = min(result.ttft_p99_s for result in theirs.values())
    return [
        Figure(f"{row.name}: hit rate", ours.hit_rate, hit_rate, row.hit_rate, AT_LEAST),
        Figure(f"{row.name}: mean s", ours.ttft_mean_s, mean_s, row.mean_s, AT_MOST),
        Figure(f"{row.name}: p99 s", ours.ttft_p99_s, p99_s, row.p99_s, AT_MOST),
    ]


def several_routers(row: Row, one: Result) -> list[Figure]:
    """Routers that hear of each other's prompts 30 ms late, beside a single one."""
    found = []
    for routers, goal in ((3, 1.05), (8, 1.08)):
        fleet = replace(row.fleet, routers=routers, lag_s=0.03)
        mean_s = simulate("cost", row.workload, fleet).ttft_mean_s
        name = f"{row.name}: mean of {routers} routers over one's"
        found.append(Figure(name, mean_s / one.ttft_mean_s, None, goal, AT_MOST))
    return found


def cells(result: Result) -> str:
    return f"{result.hit_rate:.3f} / {result.ttft_mean_s:.3f} / {result.ttft_p99_s:.2f}"


def show(table: list[tuple[str, Result, dict[str, Result]]], figures: list[Figure]) -> None:
    console = Console(width=150)
    results = Table(title="hit rate / mean / p99 of the time to the first token, s")
    for column in ("workload", "ours", *PEERS):
        results.add_column(column)
    for name, ours, theirs in table:
        results.add_row(name, cells(ours), *(cells(result) for result in theirs.values()))
    console.print(results)
    judged = Table(title="goals")
    for column in ("what", "ours", "best peer", "goal", "ok"):
        judged.add_column(column)
    for figure in figures:
        judged.add_row(
            figure.name,
            f"{figure.ours:.3f}",
            "-" if figure.peer is None else f"{figure.peer:.3f}",
            "-" if figure.goal is None else f"{figure.kind} {figure.goal}",
            {True: "yes", False: "NO", None: "-"}[figure.ok],
        )
    console.print(judged)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a trace of Mooncake's")
    parser.add_argument("--seed", type=int, default=7, help="of what is made (default 7)")
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    arguments = parser.parse_args()
    conversation = (
        trace_file.read(arguments.trace, 512) if arguments.trace else conversations(arguments.seed)
    )
    figures: list[Figure] = []
    table = []
    for row in rows(conversation, arguments.seed):
        start_s = time.process_time()
        ours = simulate("cost", row.workload, row.fleet)
        took_s = time.process_time() - start_s
        theirs = peers(row)
        table.append((row.name, ours, theirs))
        figures += compare(row, ours, theirs)
        if row.name.endswith("spread"):
            figures += several_routers(row, ours)
        if row.name == "conversations 0.9":
            name = f"CPU s of {len(row.workload.requests)} requests on {REPLICAS} replicas"
            figures.append(Figure(name, took_s, None, 2.0, AT_MOST))
    if arguments.json:
        print(json.dumps({figure.name: figure.as_json() for figure in figures}, indent=2))
    else:
        show(table, figures)


if __name__ == "__main__":
    main()
