"""An answer as its caller sees it: pieces while it streams, a result once it is whole."""

import time
from dataclasses import dataclass, field
from typing import Any

from proto.enum_names import short_name
from proto.errors import LBError
from proto.metadata import CONTROL, MATCHED_TOKENS, REASON, REPLICA
from proto.prefixlb.v1.inference_pb2 import FinishReason, GenerateResponse


@dataclass(frozen=True)
class Route:
    """Where a router sent the request, and why."""

    replica: str
    matched_tokens: int
    """Tokens of the prompt that the router believed cached there."""
    reason: str
    """"prefix", "load", "cold" or "policy"."""


@dataclass(frozen=True)
class Piece:
    """What one message brought; the text lags the tokens while a character is unfinished."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """"stop" or "length"."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    route: Route | None
    """None if a replica was asked directly."""
    ttft_s: float | None
    """From the call to the first token; None if there was no token."""
    duration_s: float
    """From the call to the last message."""


@dataclass
class Collector:
    """Gathers the stream of one answer into its Result."""

    started_s: float = field(default_factory=time.monotonic)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ttft_s: float | None = None
    result: Result | None = None

    def add(self, response: GenerateResponse, route: Route | None) -> Piece:
        now_s = time.monotonic()
        if response.token_ids and self.ttft_s is None:
            self.ttft_s = now_s - self.started_s
        self.texts.append(response.text)
        self.token_ids.extend(response.token_ids)
        if response.finish_reason:
            self.result = Result(
                text="".join(self.texts),
                token_ids=tuple(self.token_ids),
                finish_reason=short_name(FinishReason, response.finish_reason),
                prompt_tokens=response.usage.prompt_tokens,
                cached_tokens=response.usage.cached_tokens,
                completion_tokens=response.usage.completion_tokens,
                route=route,
                ttft_s=self.ttft_s,
                duration_s=now_s - self.started_s,
            )
        return Piece(response.text, tuple(response.token_ids))

    def complete(self) -> Result:
        if self.result is None:
            raise LBError(f"no last message after {len(self.token_ids)} tokens of the answer")
        return self.result


def route_from_metadata(metadata: Any) -> Route | None:
    """What a router said in the initial metadata of an answer."""
    said = {key: value for key, value in metadata or () if key.startswith(CONTROL)}
    if REPLICA not in said:
        return None
    return Route(
        replica=said[REPLICA],
        matched_tokens=int(said.get(MATCHED_TOKENS, 0)),
        reason=said.get(REASON, ""),
    )
