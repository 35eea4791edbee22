"""What a benchmark says: figures beside what they are compared with, as a table or as JSON."""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """Seconds of ours and of what it is compared with, and how much more or less is the goal."""

    name: str
    ours: list[float]
    peer: list[float]
    goal: float
    speedup: bool = False
    """The ratio is peer / ours, at least `goal`; otherwise ours / peer, at most `goal`."""

    @property
    def ratio(self) -> float:
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return peer / ours if self.speedup else ours / peer

    @property
    def ok(self) -> bool:
        return self.ratio >= self.goal if self.speedup else self.ratio <= self.goal

    def as_json(self) -> dict[str, float | bool]:
        return {
            "ours": statistics.median(self.ours),
            "peer": statistics.median(self.peer),
            "ratio": self.ratio,
            "goal": self.goal,
            "ok": self.ok,
        }


def milliseconds(values: list[float]) -> str:
    """Median and the middle half."""
    low, middle, high = (1000 * value for value in statistics.quantiles(values, n=4))
    digits = 1 if middle >= 1 else 3
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def print_table(title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=f"{title}; {os.cpu_count()} cores; ms: median (middle half)")
    for column in ("what", "ours", "compared with", "ratio", "goal", "ok"):
        table.add_column(column)
    for figure in figures:
        table.add_row(
            figure.name,
            milliseconds(figure.ours),
            milliseconds(figure.peer),
            f"{figure.ratio:.2f}",
            f"{'at least' if figure.speedup else 'at most'} {figure.goal}",
            "yes" if figure.ok else "NO",
        )
    Console(width=120).print(table)


def command_line(doc: str) -> argparse.ArgumentParser:
    """Of a benchmark."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object instead of tables")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    return parser


def run_benchmark(doc: str, *parts: tuple[str, Callable[[int], list[Figure]]]) -> None:
    """Each part has a title and measures some rounds."""
    report(command_line(doc).parse_args(), *parts)


def report(
    arguments: argparse.Namespace, *parts: tuple[str, Callable[[int], list[Figure]]]
) -> None:
    """Measure the parts, and print what came of them."""
    figures: list[Figure] = []
    for title, measure in parts:
        found = measure(arguments.rounds)
        if not arguments.json:
            print_table(title, found)
        figures += found
    if arguments.json:
        print(json.dumps({figure.name: figure.as_json() for figure in figures}, indent=2))
