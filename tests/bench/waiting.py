"""A thousand prompts of 8,192 tokens wait: python -m tests.bench.waiting [--json] [--rounds N].

They share 8,000 cached tokens. Ours: each is looked up from where it stood. Compared with: from its
start. Then what a step spends on choosing, beside what it would with the look-ups from the start.
"""

from collections.abc import Callable
from time import thread_time

import numpy as np

from replica.cache import Cache
from replica.sequence import Sequence
from replica.tree_core import CoreName, make_tree
from tests.bench.figures import Figure, run_benchmark
from tests.engine_rig import EngineRig

WAITING = 1000
SHARED, OWN = 8000, 192

TITLE = f"{WAITING} waiting prompts of {SHARED + OWN} tokens"


def measure(rounds: int) -> list[Figure]:
    return [look_ups("rust", 2, rounds), look_ups("python", 1.2, rounds), plan(rounds)]


def look_ups(core: CoreName, goal: float, rounds: int) -> Figure:
    tree = make_tree(core, page_size=1, block_size=16, hash_key=bytes(16), model="m")
    prompts = [Sequence(tokens) for tokens in _prompts()]
    tree.insert(prompts[0].keys[:SHARED].data, np.arange(SHARED, dtype=np.int32).data)
    cache = Cache(tree, EngineRig(slots=1).pool)

    def all_of_them() -> None:
        for prompt in prompts:
            cache.look_up(prompt)

    def from_the_start() -> None:
        for prompt in prompts:
            prompt.cached = prompt.node = 0
            cache.look_up(prompt)

    peer = _seconds(from_the_start, rounds)
    return Figure(f"look-ups, {core} core", _seconds(all_of_them, rounds), peer, goal, speedup=True)


def plan(rounds: int) -> Figure:
    """The tree has changed since the plan before, as after each step with a prompt in it."""
    rig = EngineRig(slots=60_000, chunk_size=512, max_running=4)
    prompts = [[int(token) for token in tokens] for tokens in _prompts()]
    rig.generate(prompts[0][:SHARED], 1)
    for prompt in prompts:
        rig.submit(prompt, 1)
    waiting = [request.sequence for request in rig.scheduler.waiting]

    def again() -> None:
        rig.cache.changes += 1
        rig.scheduler.plan(rig.clock())

    def from_the_start() -> None:
        for sequence in waiting:
            sequence.cached = sequence.node = 0
        again()

    peer = _seconds(from_the_start, rounds)
    return Figure("a plan", _seconds(again, rounds), peer, 1.5, speedup=True)


def _prompts() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    shared = rng.integers(0, 997, SHARED, dtype=np.uint32)
    return [
        np.concatenate((shared, rng.integers(0, 997, OWN, dtype=np.uint32))) for _ in range(WAITING)
    ]


def _seconds(function: Callable[[], None], rounds: int) -> list[float]:
    """Of this thread's own time, so that neighbours do not count."""
    times = []
    for _ in range(rounds):
        start = thread_time()
        function()
        times.append(thread_time() - start)
    return times


if __name__ == "__main__":
    run_benchmark(__doc__ or "", (TITLE, measure))
