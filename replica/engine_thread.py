"""The engine on a thread of its own, and how the event loop talks to it."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from proto.errors import LBError, Overloaded, Unavailable
from replica.delta_log import Position
from replica.engine import Engine, Progress
from replica.request import Request

log = logging.getLogger(__name__)

T = TypeVar("T")


class EngineThread:
    """After `start` only its thread touches the engine: others leave calls in its inbox, which it
    carries out between two steps. All methods belong to the event loop.
    """

    def __init__(self, engine: Engine, *, max_waiting: int) -> None:
        """`max_waiting`: requests accepted whose first token is still to come."""
        self.engine = engine
        self._max_waiting = max_waiting
        self._waiting: set[Request] = set()
        self._reading = 0
        self._live: set[Request] = set()
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._calls: set[asyncio.Future[Any]] = set()
        self._draining = False
        self._stopping = False  # the thread's
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()

    async def ended(self) -> None:
        """Returns after `stop`. Raises what the thread died of: without it there is no replica."""
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """End the thread after the step it is in; requests under way get Unavailable."""
        self._draining = True
        self._inbox.put(self._stop)
        await asyncio.wait((self._ended,))

    def drain(self) -> None:
        """Finish what there is and take nothing new."""
        self._draining = True
        self.engine.drain()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among those that wait, held while a request is read, which takes time too.

        Raises Overloaded or Unavailable, before that time is spent.
        """
        self._refuse_if_ending()
        waiting = len(self._waiting) + self._reading
        if waiting >= self._max_waiting:
            raise Overloaded(f"{waiting} requests wait, at most {self._max_waiting} may")
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    def submit(self, request: Request) -> None:
        """Queue what has a `place`; its stream gets the answer. Raises Unavailable."""
        self._refuse_if_ending()
        self._waiting.add(request)
        self._live.add(request)
        self._inbox.put(lambda: self.engine.add(request))

    def leave(self, request: Request) -> None:
        """Nobody reads it any more: its slots are free before the next step. Idempotent."""
        if request in self._live:
            self._forget(request)
            self._inbox.put(lambda: self.engine.leave(request))

    def position(self) -> Position:
        """Where the engine's deltas and load stand, without waiting for the step it is in.

        Raises Unavailable if it has ended.
        """
        if self._ended.done():
            raise _shutting_down()
        return self.engine.position()

    async def call(self, function: Callable[[], T]) -> T:
        """The result of `function`, run between two steps; an LBError it raises is raised here."""
        if self._ended.done():
            raise _shutting_down()
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(future)

        def run() -> None:
            settle: Callable[[], None]
            try:
                settle = partial(future.set_result, function())
            except LBError as error:
                settle = partial(future.set_exception, error)
            self._loop.call_soon_threadsafe(self._settle, future, settle)

        self._inbox.put(run)
        try:
            return await future
        finally:
            self._calls.discard(future)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._stopping:
                self._do_calls()
                if progress := self.engine.step():
                    self._loop.call_soon_threadsafe(self._deliver, progress)
        except BaseException as error:  # the event loop raises it from `ended`
            log.critical("the engine died", exc_info=True)
            failure = error
        self._loop.call_soon_threadsafe(self._end, failure)

    def _do_calls(self) -> None:
        """All calls in the inbox, waiting for one if there is nothing else to do."""
        if self.engine.is_idle:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _stop(self) -> None:
        self._stopping = True

    def _deliver(self, progress: list[Progress]) -> None:
        for each in progress:
            self._waiting.discard(each.request)
            if each.is_last:
                self._forget(each.request)
            if each.error is not None:
                each.request.stream.fail(each.error)
            else:
                each.request.stream.push(each.token_ids, each.text, each.finish_reason)

    @staticmethod
    def _settle(future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
        if not future.done():  # its caller may have gone
            settle()

    def _refuse_if_ending(self) -> None:
        if self._draining or self._ended.done():
            raise _shutting_down()

    def _forget(self, request: Request) -> None:
        self._waiting.discard(request)
        self._live.discard(request)

    def _end(self, failure: BaseException | None) -> None:
        for request in self._live:
            request.stream.fail(_shutting_down())
        for future in self._calls:
            if not future.done():
                future.set_exception(_shutting_down())
        self._live.clear()
        self._waiting.clear()
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)


def _shutting_down() -> Unavailable:
    return Unavailable("this replica is shutting down")
