"""Replicas that are there and not used, and why."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proto import keys
from proto.prefixlb.v1.delta_pb2 import Lease
from radix_rs import HASH_VERSION

log = logging.getLogger(__name__)

SHOWN_S = keys.LEASE_TTL_S
"""A refusal is shown for as long as a lease lives after it was last seen."""

TOLD_S = 60.0
"""One that was not seen for this long is told again; leases that alternate are told once."""

MAX_REFUSALS = 256
"""Kept and told of at most, however many there are."""


@dataclass(frozen=True)
class Refusal:
    """Why a replica of the view is not used."""

    lease: Lease
    reason: str
    """For a label: "lease", "hash_version", "hash_secret", "block_size", "id" or "address"."""
    detail: str
    seen_s: float


class Refusals:
    """What is refused now; each is told once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: dict[tuple[str, str], Refusal] = {}
        """By replica id and address."""

    def __iter__(self) -> Iterator[Refusal]:
        """Those seen lately."""
        now_s = self._clock()
        return iter([r for r in list(self._all.values()) if now_s - r.seen_s < SHOWN_S])

    def of(self, replica: str) -> Refusal | None:
        """The refusal of a replica id, if there is one."""
        return next((refusal for refusal in self if refusal.lease.replica_id == replica), None)

    def add(self, lease: Lease, reason: str, detail: str) -> None:
        key = (lease.replica_id, lease.address)
        known = self._all.get(key)
        if known is None and len(self._all) >= MAX_REFUSALS:
            return
        if known is None or known.reason != reason:
            log.error(
                "replica refused replica=%s address=%s reason=%s why=%r",
                *(lease.replica_id, lease.address, reason, detail),
            )
        self._all[key] = Refusal(lease, reason, detail, self._clock())

    def lift(self, lease: Lease) -> None:
        """It is used now."""
        self._all.pop((lease.replica_id, lease.address), None)

    def forget(self) -> None:
        """Drop what was not seen for long."""
        now_s = self._clock()
        self._all = {key: r for key, r in self._all.items() if now_s - r.seen_s < TOLD_S}


def objection(lease: Lease, key_check: int) -> tuple[str, str] | None:
    """Reason and detail for which a replica can serve no router with this key, if any."""
    if not (lease.model and lease.address):
        return "lease", "its lease names no model or no address"
    if lease.hash_version != HASH_VERSION:
        return "hash_version", f"hash version {lease.hash_version}, this router has {HASH_VERSION}"
    if lease.key_check != key_check:
        return (
            "hash_secret",
            "its cluster secret is not this router's: see --hash-secret-file on both",
        )
    return None
