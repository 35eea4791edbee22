"""How many calls the router takes at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from proto.errors import Overloaded


class Admission:
    """Counts what is in flight; above the bound nothing is taken."""

    def __init__(self, max_inflight: int) -> None:
        self._max_inflight = max_inflight
        self.inflight = 0
        self._taken = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """In flight until the end of the block. Raises Overloaded."""
        if self.inflight >= self._max_inflight:
            raise Overloaded(f"{self.inflight} requests are in flight, the most this router takes")
        self.inflight += 1
        self._taken += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.inflight -= 1
            if not self.inflight:
                self._idle.set()

    async def quiet(self, for_s: float) -> None:
        """Return once nothing has been in flight for `for_s` seconds."""
        taken = None
        while taken != self._taken:
            await self._idle.wait()
            taken = self._taken
            await asyncio.sleep(for_s)
