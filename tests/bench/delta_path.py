"""Where a delta's time goes, from the tree's change to the mirror that has it."""

import statistics
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

from proto.prefixlb.v1.delta_pb2 import DeltaBatch

STAGES = (
    "10 ms since the batch before",
    "publisher's thread at it",
    "encoded, sent, in Redis",
    "read by the router",
    "applied",
)
"""Redis tells whole milliseconds: up to one of the third is counted to the fourth."""


class Sending(NamedTuple):
    """Of a batch, by its replica. Times are CLOCK_MONOTONIC in ns."""

    seq: int
    due_ns: int
    """When the publisher was free to send again."""
    woken_ns: int
    """When its thread was at it."""


class Arrival(NamedTuple):
    """Of a batch, by the router."""

    in_redis_ns: int
    received_ns: int
    applied_ns: int
    batch: bytes


class Way(NamedTuple):
    """One change's, in ms: all of it and its stages."""

    total_ms: float
    stages_ms: tuple[float, ...]


def ways(
    changes: list[tuple[int, int]], sendings: Iterable[Sending], arrivals: Iterable[Arrival]
) -> list[Way]:
    """Of each change (digest, ns) of a tree that a batch told of after the first one seen."""
    digests = [digest for digest, _ in changes]
    by_seq = {sending.seq: sending for sending in sendings}
    found: list[Way] = []
    at: int | None = None
    for arrival in arrivals:
        header = DeltaBatch.FromString(arrival.batch)
        if at is None:
            at = digests.index(header.digest) if header.digest in digests else None
        elif header.digest != digests[at]:
            until = digests.index(header.digest, at + 1)
            sending = by_seq[header.seq]
            found += [_way(ns, sending, arrival) for _, ns in changes[at + 1 : until + 1]]
            at = until
    return found


def _way(changed_ns: int, sending: Sending, arrival: Arrival) -> Way:
    later_ns = (sending.due_ns, sending.woken_ns, *arrival[:3])
    marks = accumulate((changed_ns, *later_ns), max)
    stages_ms = tuple((after - before) / 1e6 for before, after in pairwise(marks))
    return Way((arrival.applied_ns - changed_ns) / 1e6, stages_ms)


def mean_stages(found: list[Way], first: int, last: int) -> tuple[float, ...]:
    """Of the ways from one percentile to another: they add up to the mean of these."""
    ordered = sorted(found)
    some = ordered[len(ordered) * first // 100 : len(ordered) * last // 100]
    return tuple(map(statistics.fmean, zip(*(way.stages_ms for way in some), strict=True)))
