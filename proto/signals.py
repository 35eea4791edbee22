"""How a process is told to end: one signal lets it drain, a second one ends the draining."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class EndSignals:
    """SIGTERM and SIGINT, from here on. To be made inside a running event loop."""

    def __init__(self) -> None:
        self._first, self._second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number.name)

    async def drained(
        self, drain: Callable[[], Coroutine[Any, Any, None]], timeout_s: float | None = None
    ) -> bool:
        """Wait for a signal, then `drain`; False if a second one, or the time, came first."""
        await self._first.wait()
        drained = asyncio.create_task(drain())
        ended = asyncio.create_task(self._second.wait())
        try:
            await asyncio.wait(
                {drained, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if drained.done():
                drained.result()  # raises what it raised
                return True
            return False
        finally:
            for task in (drained, ended):
                task.cancel()

    def _on_signal(self, name: str) -> None:
        log.info("signal name=%s", name)
        (self._second if self._first.is_set() else self._first).set()
