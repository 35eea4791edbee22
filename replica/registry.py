"""The replica's lease in Redis: it says that the replica lives, and where."""

import asyncio
import logging
import time
from collections.abc import Callable

import redis
import redis.asyncio

from proto import keys
from proto.prefixlb.v1 import delta_pb2
from replica.metrics import Metrics

log = logging.getLogger(__name__)


class Registry:
    """Renews the lease from the event loop: a replica whose loop hangs is no longer alive."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        metrics: Metrics,
        *,
        cluster: str,
        lease: Callable[[], delta_pb2.Lease],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`lease` gives the lease as of now."""
        self._client = client
        self._metrics = metrics
        self._cluster = cluster
        self._lease = lease
        self._wall_clock = wall_clock
        self._known: bool | None = None

    async def run(self) -> None:
        """Renew every period until cancelled; while Redis is away, go on trying."""
        while True:
            await self.renew()
            await asyncio.sleep(keys.LEASE_PERIOD_S)

    async def renew(self) -> bool:
        """Whether Redis took the lease."""
        lease = self._lease()
        now_s = self._wall_clock()
        members = keys.members(self._cluster)
        key = keys.lease(self._cluster, lease.replica_id)
        try:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(key, lease.SerializeToString(), px=int(keys.LEASE_TTL_S * 1000))
                pipe.zadd(members, {lease.replica_id: now_s})
                pipe.zremrangebyscore(members, "-inf", now_s - keys.LEASE_TTL_S)
                await pipe.execute()
        except (redis.RedisError, OSError) as error:
            self._metrics.lease_failures.inc()
            if self._known is not False:
                log.warning("cannot renew the lease, will retry: key=%s error=%s", key, error)
            self._known = False
            return False
        if not self._known:
            log.info("lease held: key=%s address=%s", key, lease.address)
        self._known = True
        return True

    async def withdraw(self) -> None:
        """Leave at once rather than when the lease runs out."""
        replica_id = self._lease().replica_id
        try:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.delete(keys.lease(self._cluster, replica_id))
                pipe.zrem(keys.members(self._cluster), replica_id)
                await pipe.execute()
        except (redis.RedisError, OSError) as error:
            self._metrics.lease_failures.inc()
            log.warning("cannot withdraw the lease, it will run out: error=%s", error)
