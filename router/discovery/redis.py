"""Replicas by their leases in Redis."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

from google.protobuf.message import DecodeError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from proto import keys
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import reply_timeout
from router.backoff import pauses
from router.redis_link import RedisLink

log = logging.getLogger(__name__)

PERIOD_S = keys.LEASE_PERIOD_S / 2
"""Between two looks at the leases."""

GRACE_S = 2 * keys.LEASE_PERIOD_S
"""How long a replica stays that is not even a member any more: Redis may have lost its data, and
then every replica writes itself anew."""


class LeaseDiscovery:
    """Reads the members of the cluster and their leases twice a lease period.

    A member whose lease is gone two looks in a row has died. A replica that is no member either has
    left, or Redis was emptied; it stays for GRACE_S.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        cluster: str,
        link: RedisLink,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._cluster = cluster
        self._link = link
        self._rng = rng
        self._clock = clock
        self._view: dict[str, Lease] = {}
        self._absent: dict[str, tuple[float, int]] = {}
        """Since when, and how many looks, a replica of the view has no lease."""

    async def views(self) -> AsyncIterator[Mapping[str, Lease]]:
        retry = pauses(self._rng)
        while True:
            try:
                async with reply_timeout():
                    members, leases = await self._read()
            except (RedisError, OSError) as error:
                self._link.failed(error)
                self._absent.clear()  # what was absent before Redis went says nothing afterwards
                await asyncio.sleep(next(retry))
                continue
            self._link.answered()
            retry = pauses(self._rng)
            yield self._next_view(members, leases)
            await asyncio.sleep(PERIOD_S)

    async def _read(self) -> tuple[set[str], dict[str, Lease]]:
        """All members, and the leases that exist of members and replicas in the view."""
        names = await self._redis.zrange(keys.members(self._cluster), 0, -1)
        members = {name.decode() for name in cast(list[bytes], names)}
        asked = sorted(members | self._view.keys())
        lease_keys = [keys.lease(self._cluster, name) for name in asked]
        values = cast(list[bytes | None], await self._redis.mget(lease_keys)) if asked else []
        leases: dict[str, Lease] = {}
        for name, value in zip(asked, values, strict=True):
            if value is None:
                continue
            try:
                lease = Lease.FromString(value)
            except DecodeError:
                log.error("lease is no Lease message replica=%s size_bytes=%d", name, len(value))
                continue
            if lease.replica_id == name:
                leases[name] = lease
            else:
                log.error("lease of another replica=%s names=%s", name, lease.replica_id)
        return members, leases

    def _next_view(self, members: set[str], leases: dict[str, Lease]) -> dict[str, Lease]:
        now = self._clock()
        view = dict(leases)
        absent: dict[str, tuple[float, int]] = {}
        for name, lease in self._view.items():
            if name in leases:
                continue
            since, looks = self._absent.get(name, (now, 0))
            looks += 1
            died = name in members and looks >= 2
            if not died and now - since < GRACE_S:
                view[name] = lease
                absent[name] = (since, looks)
        self._view, self._absent = view, absent
        return view
