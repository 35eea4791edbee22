"""What a replica's process keeps of the memory that it no longer uses."""

import subprocess
import sys

import pytest

from replica.allocator import TRIM_PERIOD_S, _trim

GROWS_AND_SHRINKS = """
import psutil
from proto.mallopt import malloc_trim
from replica.allocator import share_one_heap

share_one_heap()
mib = lambda: psutil.Process().memory_info().rss >> 20
kept = [(bytearray(50_000), bytearray(50_000)) for _ in range(1000)]
kept = [second for first, second in kept]  # what is free lies between what is used
full = mib()
malloc_trim()
print(full - mib())
"""


def test_free_memory_within_the_heap_goes_back() -> None:
    """Half of 100 MB; a heap cut at its end alone would keep it."""
    said = subprocess.check_output([sys.executable, "-c", GROWS_AND_SHRINKS], text=True)
    assert int(said) > 35


def test_it_goes_back_each_minute() -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        _trim(sleep)
    assert waits == [TRIM_PERIOD_S] * 3
