"""Sends the delta log, on a thread of its own, so that nothing can hold up the engine."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager

from proto import keys
from replica.delta_log import Batch, DeltaLog
from replica.metrics import Metrics

log = logging.getLogger(__name__)

PERIOD_S = 0.010
"""Seconds from one sending's begin to the next one's at least: waiting for Redis counts, too."""

RETRY_S = 0.5
"""Seconds between attempts while batches are not taken."""


class Publisher:
    """While `running` every batch of the log goes to `send`, in order."""

    def __init__(
        self,
        delta_log: DeltaLog,
        send: Callable[[Batch], bool],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` says whether the batch was taken; if not, it gets the same one again later."""
        self._log = delta_log
        self._offer = send
        self._metrics = metrics
        self._clock = clock
        self._stopping = threading.Event()
        self._heartbeat_due_s = clock()
        self._ended: Future[None] = Future()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish in the block, and at its end what is left.

        What the thread dies of ends the block, in an ExceptionGroup: a replica whose deltas go
        nowhere misleads every router.
        """
        thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        thread.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="publisher")
            try:
                yield
            finally:
                self._stopping.set()
                self._log.wake()
                await asyncio.to_thread(thread.join)

    def step(self) -> bool:
        """Send all there is, a heartbeat if one is due. False: a batch was not taken.

        What the tree does meanwhile is for the next step: with a slow Redis this one might not end.
        """
        epoch, seq = self._log.position
        heartbeat = self._clock() >= self._heartbeat_due_s
        while batch := self._log.take(heartbeat=heartbeat):
            if not self._offer(batch):
                self._metrics.backlog_bytes.set(self._log.backlog_bytes)
                return False
            self._log.sent(batch)
            heartbeat = False
            self._heartbeat_due_s = self._clock() + keys.LEASE_PERIOD_S
            if batch.epoch != epoch or batch.seq > seq:  # closed in this step, over all there was
                break
        self._metrics.backlog_bytes.set(self._log.backlog_bytes)
        return True

    async def _watch(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # the event loop raises it from `running`
            log.critical("the publisher died", exc_info=True)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _publish(self) -> None:
        while not self._stopping.is_set():
            self._log.wait(max(self._heartbeat_due_s - self._clock(), 0.0))
            next_s = self._clock() + PERIOD_S
            taken = self.step()
            self._stopping.wait(max(next_s - self._clock(), 0.0) if taken else RETRY_S)
        self._heartbeat_due_s = self._clock()
        self.step()
