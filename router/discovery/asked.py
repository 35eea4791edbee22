"""Who answers at an address: each replica says itself who it is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from grpc import aio

from proto.prefixlb.v1.delta_pb2 import Lease
from router.discovery.lease_check import check_lease
from router.replica_channel import failure

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Between two rounds of questions."""


Ask = Callable[[str], Awaitable[Lease]]
"""Returns the lease of the replica at an address or raises AioRpcError."""


class AskedReplicas:
    """Asks every address who it is, again and again, so that a restart shows as a new epoch.

    An address that does not answer keeps the replica that was last there: whether it can be picked
    is for its health to say.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._leases: dict[str, Lease] = {}
        """By address."""
        self._silent: set[str] = set()
        """Addresses that were told not to answer."""

    def known(self, addresses: Collection[str]) -> list[Lease]:
        """Those of these addresses by what they last said; the others are forgotten."""
        self._leases = {each: self._leases[each] for each in addresses if each in self._leases}
        self._silent.intersection_update(addresses)
        return list(self._leases.values())

    async def at(self, addresses: Collection[str]) -> list[Lease]:
        """The replicas at these addresses, asked now; the others are forgotten."""
        await asyncio.gather(*map(self._refresh, addresses))
        return self.known(addresses)

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
