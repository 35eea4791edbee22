"""Slots that are given back: ranges of them, in the order in which they come.

An array i32 [n, 2]: the first slot of a range, and how many there are, each the one before and one.
"""

import numpy as np
import numpy.typing as npt

SlotArray = npt.NDArray[np.int32]


def to_ranges(slots: SlotArray) -> SlotArray:
    """The fewest ranges that are `slots` (i32, [m])."""
    starts = np.flatnonzero(np.diff(slots, prepend=slots[:1]) != 1)
    counts = np.diff(starts, append=len(slots))
    return np.stack((slots[starts], counts), axis=1).astype(np.int32)


def to_slots(ranges: SlotArray) -> SlotArray:
    """All slots of `ranges`, one by one (i32, [m])."""
    if not len(ranges):
        return np.empty(0, dtype=np.int32)
    first, counts = ranges[:, 0], ranges[:, 1]
    ends = np.cumsum(counts)
    steps = np.ones(ends[-1], dtype=np.int32)
    steps[0] = first[0]
    steps[ends[:-1]] = first[1:] - (first[:-1] + counts[:-1] - 1)
    return np.cumsum(steps, dtype=np.int32)


def from_bytes(ranges: bytes) -> SlotArray:
    """As the tree returns them."""
    return np.frombuffer(ranges, dtype=np.int32).reshape(-1, 2)
