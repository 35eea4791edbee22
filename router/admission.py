"""How many requests the router takes at once, by its data plane and by its admin service."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from proto.errors import Overloaded
from radix_rs import Plane

POLL_S = 0.02


class Admission:
    """What is in flight; above the bound, which the data plane knows, nothing is taken."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    @property
    def inflight(self) -> int:
        return self._plane.inflight

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """In flight until the end of the block. Raises Overloaded."""
        if not self._plane.enter():
            raise Overloaded(f"{self.inflight} requests are in flight, the most this router takes")
        try:
            yield
        finally:
            self._plane.leave()

    async def quiet(self, for_s: float) -> None:
        """Return once nothing has been in flight for `for_s` seconds."""
        taken = None
        while taken != self._plane.taken or self.inflight:
            while self.inflight:  # noqa: ASYNC110 - other threads count
                await asyncio.sleep(POLL_S)
            taken = self._plane.taken
            await asyncio.sleep(for_s)
