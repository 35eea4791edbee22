"""Requests to play: when each came, how long it was, and which blocks it began with."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from proto.errors import InvalidRequest
from radix_rs import Trace


@dataclass(frozen=True, slots=True)
class Request:
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]
    """Of its blocks, each with all before it."""
    place: str
    """Where it stands, for errors."""


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival."""

    name: str
    block_size: int
    requests: Sequence[Request]

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def span_s(self) -> float:
        """From the trace's beginning to the last arrival."""
        return self.requests[-1].arrived_s if self.requests else 0.0

    @property
    def most_cached(self) -> float:
        """The part of all prompt tokens that one endless cache would have."""
        seen: set[int] = set()
        cached = 0
        for request in self.requests:
            matched = 0
            while matched < len(request.hashes) and request.hashes[matched] in seen:
                matched += 1
            seen.update(request.hashes)
            cached += min(matched * self.block_size, request.prompt_tokens - 1)
        return cached / max(self.prompt_tokens, 1)

    def utilisation(self, tokens_per_s: float) -> float:
        """The part of a fleet's time that all prompts take if nothing is cached; 0 without time."""
        return self.prompt_tokens / self.span_s / tokens_per_s if self.span_s else 0.0

    def first(self, number: int) -> "Workload":
        return replace(self, requests=self.requests[:number])

    def since(self, start_s: float) -> "Workload":
        """Time begins at `start_s`."""
        return self._at([request.arrived_s - start_s for request in self.requests])

    def faster(self, speed: float) -> "Workload":
        return self._at([request.arrived_s / speed for request in self.requests])

    def spread(self, slot_s: float, seed: int) -> "Workload":
        """Each somewhere in the `slot_s` after it came."""
        rng = random.Random(seed)
        spread = self._at([each.arrived_s + rng.random() * slot_s for each in self.requests])
        return replace(spread, requests=sorted(spread.requests, key=lambda each: each.arrived_s))

    def _at(self, arrived_s: list[float]) -> "Workload":
        moved = [
            replace(request, arrived_s=at_s)
            for request, at_s in zip(self.requests, arrived_s, strict=True)
        ]
        return replace(self, requests=moved)

    def trace(self) -> Trace:
        """As the simulator takes it. InvalidRequest names the first request that makes no sense."""
        trace = Trace(block_size=self.block_size)
        for each in self.requests:
            try:
                trace.add(each.arrived_s, each.prompt_tokens, each.output_tokens, each.hashes)
            except ValueError as error:
                raise InvalidRequest(f"{each.place}: {error}") from None
        return trace
