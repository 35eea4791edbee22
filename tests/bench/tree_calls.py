"""Single calls on the tree: matches by length, evictions by leaves, splits, a busy thread by."""

import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import numpy as np

from tests.bench.tree_backends import make_tree
from tests.bench.tree_workloads import VOCABULARY, Tokens

EDGE = 16_384


def match_us(length: int) -> float:
    """One stored key of `length` tokens, matched whole, its slots not asked for.

    A view of it, as the engine passes: to lend one costs numpy 0.07 us more than a memoryview.
    """
    tree, key = make_tree(1), _keys(1, length)[0].data
    tree.insert(key, _slots(length))
    return _per_call_us(lambda: tree.match_prefix(key), max(20, 200_000 // (100 + length)))


def match_with_slots_us(length: int) -> float:
    tree, key = make_tree(1), _keys(1, length)[0]
    tree.insert(key, _slots(length))
    out = np.empty(length, dtype=np.int32)
    return _per_call_us(lambda: tree.match_prefix(key, out), max(20, 200_000 // (100 + length)))


def evict_us(leaves: int, policy: str = "lru") -> float:
    """Evict the first leaf of many, each of 16 tokens."""
    tree = make_tree(1, policy=policy)
    for number, key in enumerate(_keys(leaves, 16)):
        tree.insert(key, _slots(16, 16 * number))
    times = []
    for _ in range(1000):
        start = perf_counter_ns()
        tree.evict(1)
        times.append((perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def split_us() -> float:
    """A match that ends 16 tokens into an edge of 16k."""
    tree = make_tree(1)
    keys = _keys(64, EDGE)
    for number, key in enumerate(keys):
        tree.insert(key, _slots(EDGE, EDGE * number))
    times = []
    for key in keys:
        head = key[:16].copy()
        start = perf_counter_ns()
        tree.match_prefix(head)
        times.append((perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def match_beside_busy_thread_us(length: int = 1024) -> float:
    """The mean, since it is the rare long wait for the interpreter's lock that hurts."""
    tree, key = make_tree(1), _keys(1, length)[0]
    tree.insert(key, _slots(length))
    with _busy_thread():
        times = []
        for _ in range(20_000):
            start = perf_counter_ns()
            tree.match_prefix(key)
            times.append((perf_counter_ns() - start) / 1e3)
    # The interpreter takes the lock away every 5 ms, whatever is called: the calls hit by that
    # are not the tree's, and are those of some milliseconds.
    return statistics.mean(times)


@contextmanager
def _busy_thread() -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _per_call_us(call: Callable[[], object], calls: int) -> float:
    """Median of five rounds."""
    rounds = []
    for _ in range(5):
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((perf_counter_ns() - start) / calls / 1e3)
    return statistics.median(rounds)


def _keys(count: int, length: int) -> list[Tokens]:
    rng = np.random.default_rng(3)
    return list(rng.integers(0, VOCABULARY, (count, length), dtype=np.uint32))


def _slots(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)
