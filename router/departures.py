"""Replicas that were in the fleet a short while ago, and why they no longer are."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proto.prefixlb.v1.delta_pb2 import Lease

SHOWN_S = 60.0
"""Long enough to be seen by whoever looks because something went wrong."""

MAX_DEPARTURES = 16
"""Kept at most, the last ones, however many leave at once."""


@dataclass(frozen=True)
class Departure:
    """A replica that left."""

    lease: Lease
    why: str
    left_s: float


class Departures:
    """Who left within SHOWN_S and has not come back, the last one first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: dict[str, Departure] = {}
        """By replica id, in the order in which they left."""

    def __iter__(self) -> Iterator[tuple[Departure, float]]:
        """Each with the seconds since then."""
        now_s = self._clock()
        ages = [(each, now_s - each.left_s) for each in reversed(list(self._all.values()))]
        return iter([(each, ago_s) for each, ago_s in ages if ago_s < SHOWN_S])

    def add(self, lease: Lease, why: str) -> None:
        """It leaves now."""
        self.lift(lease.replica_id)
        self._all[lease.replica_id] = Departure(lease, why, self._clock())
        while len(self._all) > MAX_DEPARTURES:
            del self._all[next(iter(self._all))]

    def lift(self, replica: str) -> None:
        """It is there again."""
        self._all.pop(replica, None)
