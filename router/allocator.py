"""What the C library does with memory that is given back.

Left alone, glibc takes what is large from the system block by block until the first such block is
given back; from then on it keeps blocks of that size, up to 32 MiB, for every thread apart. A flood
of large requests would leave a multiple of what it held; and before that first block, even what
small requests need goes back to the system and comes anew.
"""

from proto.mallopt import Option, mallopt

KEPT_BYTES = 2 * 2**20
"""At the end of what a thread uses."""

BLOCK_BYTES = 2**20
"""From here on memory is given back at once, and costs more; 200,000 token ids are below it."""


def bound_what_is_kept() -> None:
    """For this process, from now on."""
    mallopt(Option.TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(Option.MMAP_THRESHOLD, BLOCK_BYTES)
