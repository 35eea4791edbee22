"""What is known of a traced request, and which trace a call says that it is part of."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

METHOD = "prefixlb.v1.Inference/Generate"
"""What is traced."""


class Span(Protocol):
    """A part of the time of a request; times in Unix nanoseconds."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """server, client or internal."""

    @property
    def id(self) -> int: ...
    @property
    def parent(self) -> int | None: ...
    @property
    def began_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...
    @property
    def answered_ns(self) -> int | None:
        """When the first of an answer came."""

    @property
    def code(self) -> str | None:
        """The name of the status that a call ended with."""

    @property
    def attributes(self) -> Sequence[tuple[str, str | int]]:
        """Names and counts: neither prompts nor their ids, nor messages, which may quote them."""


Traced = tuple[int, Sequence[Span]]
"""A request that is over: its trace's id, and its spans, the whole request's first."""

Take = Callable[[int], Sequence[Traced]]
"""Gives traced requests, as many as that at most, and forgets them."""

TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Caller:
    """The span that a call is part of."""

    trace: int
    span: int
    is_sampled: bool


def caller_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller | None:
    """By W3C Trace Context; None if the call is part of none, or nobody can tell of which."""
    match [value for key, value in metadata or () if key == "traceparent"]:
        case [str(said)] if known := TRACEPARENT.fullmatch(said):
            version, trace, span, flags, later = known.groups()
            is_whole = version != "ff" and (version != "00" or later is None)
            if is_whole and int(trace, 16) and int(span, 16):
                return Caller(int(trace, 16), int(span, 16), bool(int(flags, 16) & SAMPLED))
    return None
