"""Replicas by a fixed list of addresses; each says itself who it is."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from grpc import aio

from proto.prefixlb.v1.delta_pb2 import Lease
from router.discovery.lease_check import check_lease
from router.replica_channel import failure

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Between two rounds of questions."""


class StaticDiscovery:
    """Asks every address who it is, again and again, so that a restart shows as a new epoch.

    An address that does not answer keeps the replica that was last there: whether it can be picked
    is for its health to say.
    """

    def __init__(self, addresses: Sequence[str], *, ask: Callable[[str], Awaitable[Lease]]) -> None:
        """`ask` returns the lease of the replica at an address or raises AioRpcError."""
        self._addresses = addresses
        self._ask = ask
        self._leases: dict[str, Lease] = {}
        """By address."""
        self._silent: set[str] = set()
        """Addresses that were told not to answer."""

    async def views(self) -> AsyncIterator[Sequence[Lease]]:
        while True:
            await asyncio.gather(*(self._refresh(address) for address in self._addresses))
            yield [self._leases[each] for each in self._addresses if each in self._leases]
            await asyncio.sleep(PERIOD_S)

    async def _refresh(self, address: str) -> None:
        try:
            lease = await self._ask(address)
            lease.address = address  # what it calls itself may not be reachable from here
            check_lease(lease)
        except (aio.AioRpcError, ValueError) as error:
            if address not in self._silent:
                self._silent.add(address)
                log.warning("replica does not answer address=%s why=%r", address, failure(error))
            return
        self._silent.discard(address)
        known = self._leases.get(address)
        if known is None or known.replica_id != lease.replica_id:
            log.info("replica answers address=%s replica=%s", address, lease.replica_id)
        self._leases[address] = lease
