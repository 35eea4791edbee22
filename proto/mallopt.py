"""glibc's allocator: mallopt(3) and malloc_trim(3). Other C libraries do as they do."""

import ctypes
from enum import IntEnum


class Option(IntEnum):
    """Of malloc.h."""

    TRIM_THRESHOLD = -1
    MMAP_THRESHOLD = -3
    ARENA_MAX = -8


def mallopt(option: Option, value: int) -> None:
    """For this process, from now on."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option:
        set_option(option, value)


def malloc_trim() -> None:
    """What is free goes back to the system, from the middle of the heap too."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
