"""The router's index against those of other routers, where they can be built, and the delta stream.

python -m tests.bench.deltas [--trace FILE] [--rounds N] [--replicas N ...] [--only PART ...]
[--json]: the trace is one of Mooncake's, a JSON object a line with `hash_ids`; without one,
conversations are made. Every match is checked against the simulated caches, every batch against its
count and digest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.delta_stream import conversations, hashing, propagation, publishing
from tests.bench.snapshots import snapshots

CRATE = Path(__file__).parent / "index"
BLOCKS = 65536
"""Of each replica's cache: a million tokens."""

PEERS = ("ChainIndex", "Dynamo")
"""smg's index in the crate kv-index, and Dynamo's ConcurrentRadixTreeCompressed."""

GOALS: dict[str, dict[int, float]] = {
    "apply ns": {8: 20, 64: 20, 512: 20},
    "bytes to proof ns": {8: 30, 64: 30, 512: 30},
    "singly ns": {8: 60, 64: 60, 512: 60},
    "match p50 us": {8: 0.45, 64: 0.6, 512: 1.6},
    "match p99 us": {8: 2, 64: 2.5, 512: 4.5},
    "match while applying, p99 of the quiet one": {8: 2, 64: 2, 512: 2},
    "bytes a block": {8: 32, 64: 32, 512: 32},
    "snapshot of 1M blocks s": {8: 1, 64: 1, 512: 1},
    "bounded: live bytes of the bound": {8: 1.05, 64: 1.05, 512: 1.05},
}
"""At most, by replicas. ns are of CPU, of a block stored or removed; bytes of a replica's copy."""

HALF = 0.5
"""Of what smg's index takes to apply in the same round, at most."""


@dataclass(frozen=True)
class Figure:
    """Each run's value of ours, and of each peer that was built."""

    name: str
    ours: list[float]
    peers: dict[str, list[float]]
    goal: float | None

    @property
    def best_peer(self) -> float | None:
        return min((statistics.median(values) for values in self.peers.values()), default=None)

    @property
    def ok(self) -> bool | None:
        """Whether the median is at the goal."""
        return None if self.goal is None else statistics.median(self.ours) <= self.goal

    @property
    def ok_at_best(self) -> bool | None:
        """Whether the best round is."""
        return None if self.goal is None else min(self.ours) <= self.goal

    @property
    def verdict(self) -> str:
        """ "at best": the best round is, and the median is not."""
        if self.goal is None:
            return "-"
        return "yes" if self.ok else "at best" if self.ok_at_best else "NO"

    def as_json(self) -> dict[str, float | bool | None]:
        ours, peer = statistics.median(self.ours), self.best_peer
        return {
            "ours": ours,
            "ours_min": min(self.ours),
            "peer": peer,
            "ratio": ours / peer if peer else None,
            "goal": self.goal,
            "ok": self.ok,
            "ok_at_best": self.ok_at_best,
        }


def build() -> Path:
    """The benchmark with its peers, or without them where they cannot be fetched or compiled."""
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    if subprocess.run([*command, "--features", "peers"], cwd=CRATE).returncode != 0:
        print("the other routers' indexes cannot be built: ours alone", file=sys.stderr)
        subprocess.run(command, cwd=CRATE, check=True)
    return CRATE / "target" / "release" / "index-bench"


def run(binary: Path, replicas: int, rounds: int, trace: Path | None) -> list[dict[str, float]]:
    arguments = [
        str(replicas),
        str(BLOCKS),
        str(rounds),
        *([str(trace.resolve())] if trace else []),
    ]
    done = subprocess.run([binary, *arguments], stdout=subprocess.PIPE, check=True)
    runs: list[dict[str, float]] = json.loads(done.stdout)["runs"]
    for name, value in (each for found in runs for each in found.items()):
        if name.endswith("wrong matches") and value:
            raise SystemExit(f"{name}: {value:.0f} at {replicas} replicas")
    return runs


def figures(replicas: int, runs: list[dict[str, float]]) -> list[Figure]:
    def values(whose: str, what: str) -> list[float]:
        return [each[f"{whose}: {what}"] for each in runs if f"{whose}: {what}" in each]

    whats = [name.removeprefix("ours: ") for name in runs[0] if name.startswith("ours: ")]
    pairs = zip(values("ours", "apply ns"), values(PEERS[0], "apply ns"), strict=False)
    shares = [ours / peer for ours, peer in pairs]
    name = f"apply ns of {PEERS[0]}'s, {replicas} replicas"
    beside = [Figure(name, shares, {}, HALF)] if shares else []
    return beside + [
        Figure(
            name=f"{what}, {replicas} replicas",
            ours=values("ours", what),
            peers={peer: found for peer in PEERS if (found := values(peer, what))},
            goal=GOALS.get(what, {}).get(replicas),
        )
        for what in whats
        if what != "wrong matches"
    ]


STREAM = {
    part.__name__: part for part in (hashing, conversations, snapshots, propagation, publishing)
}


def stream_figures(parts: list[str], rounds: int) -> list[Figure]:
    return [
        Figure(name=row.name, ours=row.values, peers={}, goal=row.goal)
        for part in parts
        for row in STREAM[part](rounds)
    ]


def show(found: list[Figure]) -> None:
    load = os.getloadavg()[0]
    title = f"median (minimum) of the rounds; {os.cpu_count()} cores, load {load:.1f} at the end"
    table = Table(title=title)
    for column in ("what", "ours", *PEERS, "goal", "ok"):
        table.add_column(column)
    for figure in found:
        peers = (figure.peers.get(peer) for peer in PEERS)
        table.add_row(
            figure.name,
            *(
                f"{statistics.median(v):.2f} ({min(v):.2f})" if v else "-"
                for v in (figure.ours, *peers)
            ),
            "-" if figure.goal is None else f"at most {figure.goal:g}",
            figure.verdict,
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a trace of Mooncake's")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 64, 512])
    parts = ["index", *STREAM]
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="parts of it")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    arguments: Any = parser.parse_args()
    found: list[Figure] = []
    if "index" in arguments.only:
        binary = build()
        for replicas in arguments.replicas:
            found += figures(replicas, run(binary, replicas, arguments.rounds, arguments.trace))
    found += stream_figures([part for part in STREAM if part in arguments.only], arguments.rounds)
    if arguments.json:
        print(json.dumps({figure.name: figure.as_json() for figure in found}, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
