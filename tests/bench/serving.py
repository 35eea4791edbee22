"""A request through router and replica: a cached prefix against none, eight streams against one.

python -m tests.bench.serving [--json] [--rounds N]

A real cluster: Redis, one replica with SmolLM2-135M, a router, one client over gRPC.
"""

import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proto.client import Client
from router.cli.cluster import LocalCluster
from tests.bench.figures import Figure, run_benchmark
from tests.conftest import smollm2_file

TITLE = "SmolLM2-135M, float32: client, router, replica"

PREFIX = 512
OWN = 16
CONTEXT = 128
"""Prompt tokens of each stream whose decoding is measured."""
STEPS = 48
BATCH = 8


def measure(rounds: int) -> list[Figure]:
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(100, 49_000) for _ in range(count)]

    none: list[float] = []
    cached: list[float] = []
    alone: list[float] = []
    together: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="prefixlb-bench-") as directory,
        LocalCluster(
            model=smollm2_file(),
            state_dir=Path(directory),
            replicas=1,
            replica_flags=("--slots", "16384"),
        ) as cluster,
        Client(cluster.router.address) as client,
        ThreadPoolExecutor(BATCH) as pool,
    ):

        def first_token_s(prompt: list[int], expected_cached: int) -> float:
            answer = client.complete(prompt, max_tokens=1)
            if answer.cached_tokens != expected_cached or answer.ttft_s is None:
                raise RuntimeError(f"{answer.cached_tokens} cached, expected {expected_cached}")
            return answer.ttft_s

        def token_s(prompt: list[int]) -> float:
            """Mean seconds between the tokens of one stream."""
            answer = client.generate(prompt, max_tokens=STEPS, ignore_eos=True)
            times = [time.perf_counter() for piece in answer if piece.token_ids]
            return (times[-1] - times[0]) / (len(times) - 1)

        for _ in range(rounds + 1):
            prefix = tokens(PREFIX)
            none.append(first_token_s(prefix + tokens(OWN), 0))
            cached.append(first_token_s(prefix + tokens(OWN), PREFIX))
            alone.append(token_s(tokens(CONTEXT)))
            prompts = [tokens(CONTEXT) for _ in range(BATCH)]
            for prompt in prompts:
                client.complete(prompt, max_tokens=1)  # so that all decode at the same time
            streams = list(pool.map(token_s, prompts))
            together.append(sum(streams) / len(streams) / BATCH)
    # The first round warms up.
    return [
        Figure(f"first token, {PREFIX} cached / none", cached[1:], none[1:], 12.0, speedup=True),
        Figure(f"decode a token, {BATCH} streams / 1", together[1:], alone[1:], 3.0, speedup=True),
    ]


if __name__ == "__main__":
    run_benchmark(__doc__, (TITLE, measure))
