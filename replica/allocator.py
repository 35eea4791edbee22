"""How the C library lays out this process's memory.

Left alone, glibc gives threads that allocate at the same time heaps of their own, eight for each
core. What one thread gives back no thread of another heap can use, and gRPC has a dozen of them:
over hours each heap grows to the most that large requests ever took of it.
"""

from proto.mallopt import Option, mallopt


def share_one_heap() -> None:
    """For this process, before it has threads.

    Few allocate at the same time, most of them under the interpreter's lock. Unlike a router's,
    blocks stay in the heap however large they are: a model on the CPU takes and frees some in each
    layer, and 6 MB that come anew from the system cost 2 ms, six times what writing them takes.
    """
    mallopt(Option.ARENA_MAX, 1)
