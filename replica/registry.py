"""The replica's lease in Redis: it says that the replica lives, and where."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

from google.protobuf.message import DecodeError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from proto import keys
from proto.errors import Unavailable
from proto.prefixlb.v1 import delta_pb2
from proto.redis_client import failure_reason, is_wrong_type, reply_timeout
from replica.metrics import Metrics

log = logging.getLogger(__name__)


REPLY_TIMEOUT_S = 2.0
"""Less than the lease lives, so that one attempt more comes before it runs out."""


class Registry:
    """Renews the lease from the event loop: a replica whose loop hangs is no longer alive."""

    def __init__(
        self,
        client: Redis,
        metrics: Metrics,
        *,
        cluster: str,
        lease: Callable[[], delta_pb2.Lease],
    ) -> None:
        """`lease` gives the lease as of now."""
        self._client = client
        self._metrics = metrics
        self._cluster = cluster
        self._lease = lease
        self._known: bool | None = None
        self._epochs: deque[int] = deque(maxlen=16)
        """Those of the leases written here."""
        self._other = ""
        """Address of another replica that renews the lease too."""
        self._alone_s = 0.0
        """Since its last renewal."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Renew every period in the block, also while Redis is away; then withdraw.

        Raises Unavailable if another replica holds the lease and renews it.
        """
        await self._await_turn()
        async with asyncio.TaskGroup() as tasks:
            renewals = tasks.create_task(self._renew_forever(), name="lease")
            try:
                yield
            finally:
                renewals.cancel()
                await asyncio.wait((renewals,))  # or its last renewal might come after
                await self.withdraw()

    async def renew(self) -> bool:
        """Whether Redis took the lease."""
        lease = self._lease()
        if lease.epoch not in self._epochs:
            self._epochs.append(lease.epoch)
        members = keys.members(self._cluster)
        key = keys.lease(self._cluster, lease.replica_id)
        try:
            async with reply_timeout(REPLY_TIMEOUT_S):
                seconds, microseconds = await self._client.time()
                now_s = seconds + microseconds / 1e6
                async with self._client.pipeline(transaction=True) as pipe:
                    pipe.mget((key,))  # unlike GET it takes a key of another type for none
                    pipe.set(key, lease.SerializeToString(), ex=keys.LEASE_TTL_S)
                    pipe.zadd(members, {lease.replica_id: now_s})
                    pipe.zremrangebyscore(members, "-inf", now_s - keys.LEASE_TTL_S)
                    pipe.expire(members, keys.LEASE_TTL_S)
                    (before,), *_ = await pipe.execute()
        except (RedisError, OSError) as error:
            self._metrics.lease_failures.inc()
            if self._known is not False:
                why = failure_reason(error)
                log.warning("cannot renew the lease, will retry key=%s why=%r", key, why)
            self._known = False
            if is_wrong_type(error):
                await self._make_way(members)
            return False
        if not self._known:
            log.info("lease held key=%s address=%s", key, lease.address)
        else:  # what was there at the first time may be of a life before
            self._look_for_another(before, key, lease)
        self._known = True
        return True

    def _look_for_another(self, value: bytes | None, key: str, own: delta_pb2.Lease) -> None:
        """Say so if what the lease was before its renewal was not written here."""
        try:
            held = delta_pb2.Lease.FromString(value or b"")
        except DecodeError:
            return
        is_own = held.address == own.address and held.epoch in self._epochs
        other = "" if not value or is_own else held.address
        if other and other != self._other:
            log.warning(
                "another replica renews the lease of this id: give each its own --replica-id"
                " key=%s replica=%s address=%s other=%r other_epoch=%016x",
                *(key, own.replica_id, own.address, other, held.epoch),
            )
        if other:
            self._other, self._alone_s = other, 0.0
        elif self._other:
            # Each may find its own for a while, where one renews right after the other.
            self._alone_s += keys.LEASE_PERIOD_S
            if self._alone_s >= keys.LEASE_TTL_S:
                log.info("no other replica renews the lease any more key=%s", key)
                self._other = ""

    async def _make_way(self, key: str) -> None:
        """Remove what is no set of members: it is ours by its name, and of no use to anybody."""
        with suppress(RedisError, OSError):  # the next renewal tries again
            async with reply_timeout(REPLY_TIMEOUT_S):
                await self._client.unlink(key)

    async def withdraw(self) -> None:
        """Leave nothing behind, at once rather than when it all runs out."""
        replica_id = self._lease().replica_id
        if self._other:
            log.info("leaves the lease to the other replica address=%s", self._other)
            return
        try:
            async with (
                reply_timeout(REPLY_TIMEOUT_S),
                self._client.pipeline(transaction=False) as pipe,  # a full Redis queues nothing
            ):
                pipe.delete(keys.lease(self._cluster, replica_id))
                pipe.delete(keys.deltas(self._cluster, replica_id))
                pipe.zrem(keys.members(self._cluster), replica_id)
                await pipe.execute()
        except (RedisError, OSError) as error:
            self._metrics.lease_failures.inc()
            log.warning("cannot withdraw the lease, it will run out why=%r", failure_reason(error))

    async def _await_turn(self) -> None:
        """Until the lease of another life at another address has run out, if there is one."""
        own = self._lease()
        key = keys.lease(self._cluster, own.replica_id)
        left_ms: int | None = None
        while True:
            try:
                async with reply_timeout(REPLY_TIMEOUT_S):
                    value = cast(bytes | None, await self._client.get(key))
                    now_left_ms = await self._client.pttl(key)
                other = delta_pb2.Lease.FromString(value or b"").address
            except (RedisError, OSError, DecodeError):
                return  # what cannot be read is nobody's; the routers see two of one id as well
            if not other or other == own.address:
                return
            if left_ms is None:
                log.info("waits for a lease to run out key=%s address=%s", key, other)
            elif now_left_ms > left_ms:
                raise Unavailable(
                    f"replica id {own.replica_id!r} is in use: the replica at {other} renews its"
                    f" lease, this one is at {own.address}; give each its own --replica-id"
                )
            left_ms = now_left_ms
            await asyncio.sleep(keys.LEASE_PERIOD_S / 4)

    async def _renew_forever(self) -> None:
        while True:
            await self.renew()
            await asyncio.sleep(keys.LEASE_PERIOD_S)
