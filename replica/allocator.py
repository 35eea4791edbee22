"""How the C library lays out this process's memory.

Left alone, glibc gives threads that allocate at the same time heaps of their own, eight for each
core. What one thread gives back no thread of another heap can use, and gRPC has a dozen of them:
over hours each heap grows to the most that large requests ever took of it. And what is free in the
middle of a heap stays with the process for good, however little of it is used after a busy hour.
"""

import ctypes
import threading
import time

from proto.mallopt import Option, mallopt

TRIM_PERIOD_S = 60.0


def share_one_heap() -> None:
    """For this process, before it has threads. What is free goes back to the system each minute.

    Few allocate at the same time, most of them under the interpreter's lock. Unlike a router's,
    blocks stay in the heap however large they are: a model on the CPU takes and frees some in each
    layer, and 6 MB that come anew from the system cost 2 ms, six times what writing them takes.
    """
    mallopt(Option.ARENA_MAX, 1)
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        threading.Thread(target=_trim, args=(trim,), name="malloc-trim", daemon=True).start()


def _trim(malloc_trim: "ctypes._NamedFuncPointer") -> None:
    while True:
        time.sleep(TRIM_PERIOD_S)
        malloc_trim(0)
