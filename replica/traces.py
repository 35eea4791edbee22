"""Where the time of traced requests went: queue, prefill and decode, until somebody takes it."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import grpc

from proto.spans import METHOD, Traced, caller_of
from proto.tracing import Sampling
from replica.request import Request

MAX_WAITING = 4096
"""Requests that wait to be taken; more are dropped, as nobody is to wait for who takes them."""

Metadata = Iterable[tuple[str, str | bytes]]
Attributes = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class Span:
    """One of `proto.spans`."""

    name: str
    kind: str
    id: int
    parent: int | None
    began_ns: int
    ended_ns: int
    answered_ns: int | None = None
    code: str | None = None
    attributes: Attributes = ()


@dataclass(slots=True)
class Trace:
    """One traced request, from its call's begin to its end."""

    id: int
    parent: int | None
    began_s: float
    """By the engine's clock, as all times of a request."""
    began_ns: int
    """The same in Unix time."""
    request: Request | None = None
    """None before it is read."""
    queued_s: float = 0.0
    """When it was."""

    def unix_ns(self, time_s: float) -> int:
        return self.began_ns + round((time_s - self.began_s) * 1e9)


class Traces:
    """Requests begin and end on the event loop; any thread takes those that are over."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        model: str,
        ids: random.Random,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`clock`: the engine's."""
        self._sampling = sampling
        self._model = model
        self._ids = ids
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._over: deque[Traced] = deque()
        self._dropped = 0

    def begin(self, metadata: Metadata | None) -> Trace | None:
        """A call begins; None if it is not to be traced."""
        caller = caller_of(metadata)
        trace_id = caller.trace if caller else self._ids.getrandbits(128) | 1
        if not self._sampling.takes(trace_id, caller.is_sampled if caller else None):
            return None
        return Trace(
            trace_id, caller.span if caller else None, self._clock(), self._wall_clock_ns()
        )

    def queued(self, traced: Trace, request: Request) -> None:
        """It is read, and goes to the engine."""
        traced.request = request
        traced.queued_s = self._clock()

    def end(self, traced: Trace, code: grpc.StatusCode) -> None:
        """The call is over."""
        if len(self._over) >= MAX_WAITING:
            self._dropped += 1
            return
        whole = self._id()
        request = traced.request
        steps = self._steps(traced, whole, request, code) if request else []
        first_s = request.first_token_s if request else None
        over = Span(
            METHOD,
            "server",
            whole,
            traced.parent,
            traced.began_ns,
            traced.unix_ns(self._clock()),
            answered_ns=None if first_s is None else traced.unix_ns(first_s),
            code=code.name,
            attributes=[("gen_ai.request.model", self._model), *(_of(request) if request else ())],
        )
        self._over.append((traced.id, [over, *steps]))

    def dropped(self) -> int:
        """Traced requests that nobody took in time."""
        return self._dropped

    def take(self, most: int) -> list[Traced]:
        """Traced requests that are over, `most` of them at most."""
        return [self._over.popleft() for _ in range(min(most, len(self._over)))]

    def _steps(
        self, traced: Trace, whole: int, request: Request, code: grpc.StatusCode
    ) -> list[Span]:
        """Each lasts until the next begins."""
        begins_s = (traced.queued_s, request.prefill_began_s, request.first_token_s)
        end_s = request.last_token_s if code is grpc.StatusCode.OK else None
        known_s = [time_s for time_s in begins_s if time_s is not None]
        # The engine's thread goes on: what it begins after this is not seen.
        edges_s = [*known_s, self._clock() if end_s is None else end_s]
        names = ("queue", "prefill", "decode")
        return [
            Span(name, "internal", self._id(), whole, traced.unix_ns(began), traced.unix_ns(ended))
            for name, (began, ended) in zip(names, pairwise(edges_s), strict=False)
        ]

    def _id(self) -> int:
        return self._ids.getrandbits(64) | 1


def _of(request: Request) -> Attributes:
    """Counts alone: neither prompts nor their ids."""
    return [
        ("prefixlb.request_id", request.request_id),
        ("gen_ai.usage.input_tokens", request.sequence.prompt_length),
        ("gen_ai.usage.cache_read.input_tokens", request.cached_tokens),
        ("gen_ai.usage.output_tokens", request.generated),
    ]
