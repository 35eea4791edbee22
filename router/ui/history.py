"""What happened in the last hour, so that a page that is opened now shows it."""

import asyncio
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from proto.prefixlb.v1.admin_pb2 import ReplicaStatus
from radix_rs import ModelReading, Router

PERIOD_S = 10.0
"""Between two samples."""

KEPT = 360
"""Samples: an hour."""

RECENT = 30
"""Samples in what is called recent: five minutes."""


class Counted(Protocol):
    """What counts answers, a plane."""

    def models(self) -> list[ModelReading]: ...


@dataclass(frozen=True)
class Sample:
    """The fleet at a time, and what it did since the sample before."""

    at_s: float
    """Unix time."""
    seconds: float
    """Since the one before."""
    requests: int
    """Completed."""
    prompt: int
    """Tokens of their prompts, and those of them that were cached: on any replica, on the picked
    one, and really.
    """
    available: int
    captured: int
    delivered: int
    first_tokens: int
    """Answers that began, and how long they took to, in seconds together."""
    first_token_s: float
    in_flight: int
    waiting: int
    pending_tokens: int


@dataclass(frozen=True)
class Totals:
    """What counts up."""

    requests: int = 0
    prompt: int = 0
    available: int = 0
    captured: int = 0
    delivered: int = 0

    @classmethod
    def of(cls, status: ReplicaStatus) -> "Totals":
        return cls(
            status.requests,
            status.prompt_tokens,
            status.available_tokens,
            status.captured_tokens,
            status.delivered_tokens,
        )

    def since(self, before: "Totals") -> "Totals":
        """Totals that went down have begun anew."""
        changes = [getattr(self, f.name) - getattr(before, f.name) for f in fields(self)]
        return self if min(changes) < 0 else Totals(*changes)


class Rates:
    """One replica's tokens by sample, in a ring: 6 KB."""

    def __init__(self) -> None:
        self._prompt = array("Q", bytes(8 * KEPT))
        self._delivered = array("Q", bytes(8 * KEPT))

    def put(self, number: int, change: Totals) -> None:
        self._prompt[number % KEPT] = change.prompt
        self._delivered[number % KEPT] = change.delivered

    def last(self, number: int, samples: int) -> tuple[list[int], list[int]]:
        """Prompt tokens and those delivered of the `samples` before sample `number`."""
        at = [n % KEPT for n in range(number - samples, number)]
        return [self._prompt[n] for n in at], [self._delivered[n] for n in at]


class History:
    """Written by one thread, read by others."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[ReplicaStatus]],
        plane: Counted,
        router: Router,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._statuses = statuses
        self._plane = plane
        self._router = router
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._stores: deque[tuple[float, int]] = deque(maxlen=KEPT + 1)
        """At which time of the clock the index had taken how many."""
        self._number = 0
        self._rates: dict[str, Rates] = {}
        self._before: dict[str, Totals] = {}
        self._answers_before = (0, 0.0)

    async def run(self) -> None:
        """Take a sample every ten seconds, until cancelled."""
        while True:
            # On another thread: a thousand replicas take some milliseconds, which requests have.
            await asyncio.to_thread(self.take)
            await asyncio.sleep(PERIOD_S)

    def take(self) -> None:
        """One sample; the first one only tells from where to count."""
        statuses = [status for status in self._statuses() if not status.refusal]
        now_s, stores = self._clock(), self._router.index_clock
        readings = [reading.first_token for reading in self._plane.models()]
        answers = (sum(sum(counts) for counts, _ in readings), sum(sum_s for _, sum_s in readings))
        totals = {status.lease.replica_id: Totals.of(status) for status in statuses}
        with self._lock:
            if self._stores:
                changes = {
                    replica: now.since(self._before.get(replica, Totals()))
                    for replica, now in totals.items()
                }
                self._rates = {r: self._rates.get(r) or Rates() for r in totals}
                for replica, change in changes.items():
                    self._rates[replica].put(self._number, change)
                self._samples.append(
                    Sample(
                        at_s=self._wall_clock(),
                        seconds=now_s - self._stores[-1][0],
                        **_sums(changes.values()),
                        first_tokens=answers[0] - self._answers_before[0],
                        first_token_s=answers[1] - self._answers_before[1],
                        in_flight=sum(status.in_flight for status in statuses),
                        waiting=sum(status.load.waiting for status in statuses),
                        pending_tokens=sum(status.load.pending_tokens for status in statuses),
                    )
                )
                self._number += 1
            self._stores.append((now_s, stores))
            self._before, self._answers_before = totals, answers

    def samples(self) -> list[Sample]:
        """The oldest first."""
        with self._lock:
            return list(self._samples)

    def rates(self, replica: str) -> tuple[list[int], list[int]]:
        """Its prompt tokens and those delivered, for each of `samples`; 0 before it joined."""
        with self._lock:
            rates = self._rates.get(replica)
            size = len(self._samples)
            return rates.last(self._number, size) if rates else ([0] * size, [0] * size)

    def recent(self) -> dict[str, tuple[int, int]]:
        """The same of the last five minutes, in sum, of all replicas."""
        with self._lock:
            samples = min(RECENT, len(self._samples))
            all_rates = list(self._rates.items())
            number = self._number
        summed = {}
        for replica, rates in all_rates:
            prompt, delivered = rates.last(number, samples)
            summed[replica] = sum(prompt), sum(delivered)
        return summed

    @property
    def reaches_back_s(self) -> float:
        """For how long it has been kept."""
        with self._lock:
            return self._clock() - self._stores[0][0] if self._stores else 0.0

    def used_within_s(self, unused: Sequence[int], stores: int) -> list[float | None]:
        """Of what was used so many stores before `stores`: for how long at most it was not; None
        if that is longer than the history.
        """
        with self._lock:
            newest_first = list(reversed(self._stores))
        now_s = self._clock()
        since = [(stores - then) % 2**32 for _, then in newest_first]
        # The latest time at which more stores were to come than since the use.
        places = [bisect_right(since, each) for each in unused]
        return [now_s - newest_first[n][0] if n < len(since) else None for n in places]


def _sums(changes: Iterable[Totals]) -> dict[str, int]:
    listed = list(changes)
    return {f.name: sum(getattr(each, f.name) for each in listed) for f in fields(Totals)}
