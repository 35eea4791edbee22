"""How the C library lays out this process's memory.

Left alone, glibc gives threads that allocate at the same time heaps of their own, eight for each
core. What one thread gives back no thread of another heap can use, and gRPC has a dozen of them:
over hours each heap grows to the most that large requests ever took of it. And what is free in the
middle of a heap stays with the process for good, however little of it is used after a busy hour.
"""

import threading
import time
from collections.abc import Callable

from proto.mallopt import Option, malloc_trim, mallopt

TRIM_PERIOD_S = 60.0


def share_one_heap() -> None:
    """For this process, before it has threads.

    Few allocate at the same time, most of them under the interpreter's lock. Unlike a router's,
    blocks stay in the heap however large they are: a model on the CPU takes and frees some in each
    layer, and 6 MB that come anew from the system cost 2 ms, six times what writing them takes.
    """
    mallopt(Option.ARENA_MAX, 1)


def trim_now_and_then() -> None:
    """Give free memory back each minute, for as long as the process lives."""
    threading.Thread(target=_trim, args=(time.sleep,), name="malloc-trim", daemon=True).start()


def _trim(sleep: Callable[[float], None]) -> None:
    while True:
        sleep(TRIM_PERIOD_S)
        malloc_trim()
