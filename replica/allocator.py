"""How the C library lays out this process's memory.

Left alone, glibc gives threads that allocate at the same time heaps of their own, eight for each
core. What one thread gives back no thread of another heap can use, and gRPC has a dozen of them:
over hours each heap grows to the most that large requests ever took of it.
"""

import ctypes

M_ARENA_MAX = -8
"""Of malloc.h."""


def share_one_heap() -> None:
    """For this process, before it has threads. Other C libraries do as they do.

    Few allocate at the same time, most of them under the interpreter's lock. Unlike a router's,
    blocks stay in the heap however large they are: a model on the CPU takes and frees some in each
    layer, and 6 MB that come anew from the system cost 2 ms, six times what writing them takes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_ARENA_MAX, 1)
