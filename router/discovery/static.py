"""Replicas by a fixed list of addresses."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from proto.prefixlb.v1.delta_pb2 import Lease
from router.discovery.asked import PERIOD_S, Ask, AskedReplicas


class StaticDiscovery:
    """Those that answer at the addresses of a list."""

    def __init__(self, addresses: Sequence[str], *, ask: Ask) -> None:
        self._addresses = addresses
        self._replicas = AskedReplicas(ask)

    async def views(self) -> AsyncIterator[Sequence[Lease]]:
        while True:
            yield await self._replicas.at(self._addresses)
            await asyncio.sleep(PERIOD_S)
