"""The forward pass against transformers' Llama, batch 8 against 1, a cached prefix against none.

python -m tests.bench.model [--json] [--rounds N]: what is compared runs in turns, in one process.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from replica.models.load import build_model, read_checkpoint
from tests.conftest import smollm2_file
from tests.reference import ReferenceRun, reference_model
from tests.runner import Run, Runner

PROMPT = 512
CONTEXT = 256
"""Tokens each sequence has before the measured decodes at batch 1 and 8."""
OWN = 16
STEPS = 16
BATCH = 8


@dataclass(frozen=True)
class Figure:
    """Seconds (or, at `per_second`, units a second) of ours and of what it is compared with."""

    name: str
    ours: list[float]
    peer: list[float]
    goal: float
    """Limit of ours / peer for times, least peer / ours for speedups."""
    speedup: bool = False

    @property
    def ratio(self) -> float:
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return peer / ours if self.speedup else ours / peer

    @property
    def ok(self) -> bool:
        return self.ratio >= self.goal if self.speedup else self.ratio <= self.goal


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(rounds: int) -> list[Figure]:
    torch.set_num_threads(2)
    checkpoint = read_checkpoint(smollm2_file())
    model = build_model(checkpoint, torch.device("cpu"))
    reference = reference_model(checkpoint)
    runner = Runner(model)
    generator = torch.Generator().manual_seed(0)

    def random_tokens(count: int) -> list[int]:
        ids: list[int] = torch.randint(
            100, model.config.vocab_size, (count,), generator=generator
        ).tolist()
        return ids

    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for _ in range(rounds + 1):
        runner.forget()
        prompt, own = random_tokens(PROMPT), random_tokens(OWN)
        ours, theirs = Run(), ReferenceRun(reference)
        note("prefill", timed(lambda run=ours: runner.forward((run, prompt, True))))
        note("prefill peer", timed(lambda run=theirs: run.forward(prompt)))
        for token in random_tokens(STEPS):
            note("decode", timed(lambda run=ours: runner.forward((run, [token], True))))
            note("decode peer", timed(lambda run=theirs: run.forward([token])))
        cached = runner.fork(ours, PROMPT)
        note("cached", timed(lambda run=cached: runner.forward((run, own, True))))
        note("uncached", timed(lambda: runner.forward((Run(), prompt + own, True))))

        runner.forget()
        runs = [Run() for _ in range(BATCH)]
        for place, run in enumerate(runs):
            runner.forward((run, random_tokens(CONTEXT - 8 * place), False))
        for token in random_tokens(STEPS):
            note("batch", timed(lambda: runner.forward(*((run, [token], True) for run in runs))))
            note("alone", timed(lambda: runner.forward((runs[0], [token], True))))
    # The first round warms up.
    kept = {name: values[len(values) // (rounds + 1) :] for name, values in times.items()}
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
    arguments = parser.parse_args()
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
