"""The forward pass against transformers' Llama, batch 8 against 1, a cached prefix against none.

python -m tests.bench.model [--json] [--rounds N]

What is compared runs in turns, in one process.
"""

import os
import time
from collections.abc import Callable
from typing import ParamSpec

import torch

from replica.models.load import build_model, read_checkpoint
from tests.bench.figures import Figure, run_benchmark
from tests.conftest import smollm2_file
from tests.reference import ReferenceRun, reference_model
from tests.runner import Run, Runner

P = ParamSpec("P")

TITLE = "SmolLM2-135M, float32: the forward pass alone"

PROMPT = 512
CONTEXT = 256
"""Tokens each sequence has before the measured decodes at batch 1 and 8."""
OWN = 16
STEPS = 16
BATCH = 8


class Stopwatch:
    """Seconds by name, one list each, in the order they were taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        begin = time.perf_counter()
        work(*args, **kwargs)
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


def measure(rounds: int) -> list[Figure]:
    torch.set_num_threads(os.cpu_count() or 1)
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


if __name__ == "__main__":
    run_benchmark(__doc__, (TITLE, measure))
