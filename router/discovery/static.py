"""Replicas by a fixed list of addresses; each says itself who it is."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from grpc import aio

from proto.prefixlb.v1.delta_pb2 import Lease
from router.replica_state import failure

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

    async def views(self) -> AsyncIterator[Mapping[str, Lease]]:
        while True:
            await asyncio.gather(*(self._refresh(address) for address in self._addresses))
            yield self._view()
            await asyncio.sleep(PERIOD_S)

    async def _refresh(self, address: str) -> None:
        try:
            lease = await self._ask(address)
        except aio.AioRpcError as error:
            if address not in self._leases:
                log.warning("replica does not answer address=%s error=%s", address, failure(error))
            return
        known = self._leases.get(address)
        lease.address = address  # what it calls itself may not be reachable from here
        self._leases[address] = lease
        if known is None or known.replica_id != lease.replica_id:
            log.info("replica answers address=%s replica=%s", address, lease.replica_id)

    def _view(self) -> dict[str, Lease]:
        view: dict[str, Lease] = {}
        for address in self._addresses:
            lease = self._leases.get(address)
            if lease is None:
                continue
            if lease.replica_id in view:
                log.error(
                    "two addresses name one replica replica=%s used=%s ignored=%s",
                    lease.replica_id,
                    view[lease.replica_id].address,
                    address,
                )
                continue
            view[lease.replica_id] = lease
        return view
