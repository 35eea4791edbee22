"""Replicas by their leases in Redis."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

from google.protobuf.message import DecodeError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from proto import keys
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import reply_timeout
from router.backoff import pauses
from router.discovery.lease_check import check_lease
from router.redis_link import RETRY_S, RedisLink

log = logging.getLogger(__name__)

PERIOD_S = keys.LEASE_PERIOD_S / 2
"""Between two looks at the leases."""

LOOKS = 2
"""A lease that is missing in so many looks on end is gone."""

MAX_REPLICAS = 1024
"""More members than this are not looked at: whoever writes into Redis cannot fill this process."""

MAX_NAME_CHARS = 253
"""As long as the name of a pod can be."""

MAX_LEASE_BYTES = 4096


class LeaseDiscovery:
    """Reads the members of the cluster and their leases twice a lease period.

    A replica without a lease has died if it does not answer either, or if another has its address.
    One that answers has lost its lease by a fault of Redis, which was away, lost its data or takes
    no writes: nobody leaves because Redis does.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        cluster: str,
        link: RedisLink,
        answers: Callable[[str], bool],
        rng: random.Random,
    ) -> None:
        """`answers`: whether a replica of the view answers its health checks."""
        self._redis = redis
        self._cluster = cluster
        self._link = link
        self._answers = answers
        self._rng = rng
        self._view: dict[str, Lease] = {}
        self._absent: dict[str, int] = {}
        """In how many looks on end a replica of the view had no lease."""

    async def views(self) -> AsyncIterator[Sequence[Lease]]:
        retry = pauses(self._rng, most_s=RETRY_S)
        while True:
            try:
                async with reply_timeout():
                    view = await self.look()
            except (RedisError, OSError) as error:
                self._link.failed(error)
                self._absent.clear()  # what was absent before Redis went says nothing afterwards
                await asyncio.sleep(next(retry))
                continue
            self._link.answered()
            retry = pauses(self._rng, most_s=RETRY_S)
            yield list(view.values())
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> dict[str, Lease]:
        """The view that follows from the leases there are now."""
        return self._next_view(await self._read())

    @property
    def without_lease(self) -> set[str]:
        """Replicas of the view that had none at the last look."""
        return set(self._absent)

    async def _read(self) -> dict[str, Lease]:
        """The leases that exist of members and replicas in the view."""
        bad: dict[str, str] = {}
        members = keys.members(self._cluster)
        # Those renewed last come first, and one more than is looked at.
        found = cast(list[bytes], await self._redis.zrevrange(members, 0, MAX_REPLICAS))
        names = [*self._view, *(name for name in _names(found, bad) if name not in self._view)]
        if max(len(found), len(names)) > MAX_REPLICAS:
            bad[members] = f"more than {MAX_REPLICAS} members, the others are not looked at"
        asked = names[:MAX_REPLICAS]
        lease_keys = [keys.lease(self._cluster, name) for name in asked]
        values = cast(list[bytes | None], await self._redis.mget(lease_keys)) if asked else []
        leases: dict[str, Lease] = {}
        for name, value in zip(asked, values, strict=True):
            if value is None:
                continue
            try:
                leases[name] = _lease(name, value)
            except ValueError as error:
                bad[name] = str(error)
        self._link.sets_aside(bad)
        return leases

    def _next_view(self, leases: dict[str, Lease]) -> dict[str, Lease]:
        view = dict(leases)
        absent: dict[str, int] = {}
        taken = {lease.address for lease in leases.values()}
        for name, lease in self._view.items():
            if name in leases:
                continue
            looks = self._absent.get(name, 0) + 1
            if lease.address not in taken and (looks < LOOKS or self._answers(name)):
                view[name] = lease
                absent[name] = looks
        self._view, self._absent = view, absent
        return view


def _names(members: list[bytes], bad: dict[str, str]) -> list[str]:
    """The members that can be names."""
    names = []
    for member in members:
        name = member.decode(errors="backslashreplace")
        if len(name) > MAX_NAME_CHARS:
            bad[name[:MAX_NAME_CHARS]] = f"name of {len(name)} characters, at most {MAX_NAME_CHARS}"
        elif name.encode() != member:
            bad[name] = "name that is no UTF-8"
        elif not name or not name.isprintable():
            bad[name] = "name that is empty or has characters that do not print"
        else:
            names.append(name)
    return names


def _lease(name: str, data: bytes) -> Lease:
    """Raises ValueError if `data` is no lease of replica `name`."""
    if len(data) > MAX_LEASE_BYTES:
        raise ValueError(f"lease of {len(data)} bytes, at most {MAX_LEASE_BYTES}")
    try:
        lease = Lease.FromString(data)
    except DecodeError as error:
        raise ValueError(f"{len(data)} bytes that are no Lease message") from error
    if lease.replica_id != name:
        raise ValueError(f"lease of another replica: {lease.replica_id!r}")
    check_lease(lease)
    return lease
