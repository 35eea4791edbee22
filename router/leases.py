"""Picks that callers send by themselves: in flight until they are released or their time is up."""

import heapq
import secrets
import time
from asyncio import sleep
from collections.abc import Callable

import grpc

from proto.errors import InvalidRequest, Overloaded
from radix_rs import Router

MAX_LEASE_S = 600.0
MAX_LEASES = 10_000
OVERLOADED_S = 1.0
"""How long a replica is passed over that turned a request away, as in the data plane."""

PERIOD_S = 1.0

FAILURES = frozenset(
    code.value[0]
    for code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
    )
)
"""Ends of a request that speak against the replica."""


class Leases:
    """Names each lease by a number that nobody can guess, and no other life of a router gives."""

    def __init__(
        self,
        router: Router,
        *,
        expired: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`expired` is called for each lease that ran out."""
        self._router = router
        self._expired = expired
        self._clock = clock
        self._picks: dict[int, int] = {}
        """The index's tickets by lease."""
        self._ends: list[tuple[float, int]] = []
        """Heap of (when, lease); those released are still in it."""

    def __len__(self) -> int:
        return len(self._picks)

    def check(self, lease_s: float) -> None:
        """Whether one more can be given. Raises InvalidRequest or Overloaded."""
        if not 0 < lease_s <= MAX_LEASE_S:
            raise InvalidRequest(f"lease_s is {lease_s:g}, expected 0 or up to {MAX_LEASE_S:g}")
        self.sweep()
        if len(self._picks) >= MAX_LEASES:
            raise Overloaded(f"{MAX_LEASES} leases are given, the most this router has at a time")

    def give(self, ticket: int, lease_s: float) -> int:
        """The lease of what `Router.pick` has named `ticket`."""
        lease = 0
        while lease == 0 or lease in self._picks:
            lease = secrets.randbits(64)
        self._picks[lease] = ticket
        heapq.heappush(self._ends, (self._clock() + lease_s, lease))
        return lease

    def release(self, lease: int, code: int) -> bool:
        """Its request ended with `code`; False if no such lease is known."""
        self.sweep()
        ticket = self._picks.pop(lease, None)
        if ticket is None:
            return False
        now_s = self._clock()
        if code == grpc.StatusCode.OK.value[0]:
            self._router.prefilled(ticket)
        elif code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
            self._router.overloaded(ticket, until_s=now_s + OVERLOADED_S)
        elif code in FAILURES:
            self._router.failed(ticket, now_s=now_s)
        self._router.release(ticket)
        if len(self._ends) > 2 * MAX_LEASES:
            self._ends = [end for end in self._ends if end[1] in self._picks]
            heapq.heapify(self._ends)
        return True

    def sweep(self) -> None:
        """End those whose time is up."""
        now_s = self._clock()
        while self._ends and self._ends[0][0] <= now_s:
            _, lease = heapq.heappop(self._ends)
            ticket = self._picks.pop(lease, None)
            if ticket is not None:
                self._router.release(ticket)
                self._expired()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await sleep(PERIOD_S)
            self.sweep()
