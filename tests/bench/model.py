"""The forward pass against transformers' Llama, batch 8 against 1, a cached prefix against none.

python -m tests.bench.model [--json] [--rounds N] [--threads N]

What is compared runs in turns, in one process.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

import torch
from rich.console import Console
from rich.table import Table

from replica.models.load import build_model, read_checkpoint
from tests.conftest import smollm2_file
from tests.reference import ReferenceRun, reference_model
from tests.runner import Run, Runner

P = ParamSpec("P")

PROMPT = 512
CONTEXT = 256
"""Tokens each sequence has before the measured decodes at batch 1 and 8."""
OWN = 16
STEPS = 16
BATCH = 8


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


class Stopwatch:
    """Seconds by name, one list each, in the order they were taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        begin = time.perf_counter()
        work(*args, **kwargs)
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


def measure(rounds: int) -> list[Figure]:
    checkpoint = read_checkpoint(smollm2_file())
    model = build_model(checkpoint, torch.device("cpu"))
    reference = reference_model(checkpoint)
    runner = Runner(model)
    watch = Stopwatch()
    generator = torch.Generator().manual_seed(0)

    def random_tokens(count: int) -> list[int]:
        ids = torch.randint(100, model.config.vocab_size, (count,), generator=generator)
        return list(ids.tolist())

    for _ in range(rounds + 1):
        runner.forget()
        prompt, own = random_tokens(PROMPT), random_tokens(OWN)
        ours, theirs = Run(), ReferenceRun(reference)
        watch.time("prefill", runner.forward, (ours, prompt, True))
        watch.time("prefill peer", theirs.forward, prompt)
        for token in random_tokens(STEPS):
            watch.time("decode", runner.forward, (ours, [token], True))
            watch.time("decode peer", theirs.forward, [token])
        watch.time("cached", runner.forward, (runner.fork(ours, PROMPT), own, True))
        watch.time("uncached", runner.forward, (Run(), prompt + own, True))

        runner.forget()
        runs = [Run() for _ in range(BATCH)]
        for place, run in enumerate(runs):
            runner.forward((run, random_tokens(CONTEXT - 8 * place), False))
        for token in random_tokens(STEPS):
            watch.time("batch", runner.forward, *((run, [token], True) for run in runs))
            watch.time("alone", runner.forward, (runs[0], [token], True))
    # The first round warms up.
    kept = {name: values[len(values) // (rounds + 1) :] for name, values in watch.seconds.items()}
    return [
        Figure(f"prefill {PROMPT} tokens", kept["prefill"], kept["prefill peer"], 1.2),
        Figure(f"decode at {PROMPT}, batch 1", kept["decode"], kept["decode peer"], 1.2),
        Figure(
            f"decode a token, batch {BATCH} / 1",
            [seconds / BATCH for seconds in kept["batch"]],
            kept["alone"],
            3.0,
            speedup=True,
        ),
        Figure(
            f"first token, {PROMPT} of {PROMPT + OWN} cached / none",
            kept["cached"],
            kept["uncached"],
            12.0,
            speedup=True,
        ),
    ]


def milliseconds(values: list[float]) -> str:
    """Median and the middle half."""
    low, middle, high = (1000 * value for value in statistics.quantiles(values, n=4))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (default 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = measure(arguments.rounds)
    if arguments.json:
        print(
            json.dumps(
                {
                    figure.name: {
                        "ours": statistics.median(figure.ours),
                        "peer": statistics.median(figure.peer),
                        "ratio": figure.ratio,
                        "goal": figure.goal,
                        "ok": figure.ok,
                    }
                    for figure in figures
                }
            )
        )
        return
    table = Table(title="SmolLM2-135M float32, ms: median (middle half)")
    for column in ("what", "ours", "compared with", "ratio", "goal", "ok"):
        table.add_column(column)
    for figure in figures:
        goal = f"at least {figure.goal}" if figure.speedup else f"at most {figure.goal}"
        table.add_row(
            figure.name,
            milliseconds(figure.ours),
            milliseconds(figure.peer),
            f"{figure.ratio:.2f}",
            goal,
            "yes" if figure.ok else "NO",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
