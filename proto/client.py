"""What a caller imports: `AsyncClient` and `Client`, for a router or for one replica.

    async with AsyncClient("127.0.0.1:30000") as client:
        answer = client.generate([{"role": "user", "content": "Hello!"}], max_tokens=32)
        async for piece in answer:
            print(piece.text, end="")
        print(answer.result.cached_tokens, "of", answer.result.prompt_tokens, "tokens were cached")

Refusals and failures arrive as the classes of `proto.errors`, by status code.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias, TypedDict, Unpack, cast

import grpc
from grpc import aio

from proto.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LBError,
    NotReady,
    Overloaded,
    StalledReader,
    Unavailable,
    UnknownModel,
)
from proto.prefixlb.v1.inference_pb2 import (
    ChatMessage,
    FinishReason,
    GenerateRequest,
    GenerateResponse,
)
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub

Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""Text as it is; chat messages, each `{"role": ..., "content": ...}`; or token ids."""

CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)
"""Replicas and routers are dialled directly, whatever proxy the environment names."""


class Options(TypedDict, total=False):
    """What `generate` takes besides the prompt; defaults and ranges as in inference.proto."""

    request_id: str
    model: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    extra_key: str
    cache_salt: str
    priority: int
    timeout_s: float
    """From the call to the last token; unset: no deadline."""


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


def build_request(prompt: Prompt, options: Options) -> GenerateRequest:
    """The message for `prompt`. Raises InvalidRequest for what the message cannot carry."""
    request = GenerateRequest()
    try:
        for name, value in options.items():
            if name == "timeout_s":
                continue
            outer = name in GenerateRequest.DESCRIPTOR.fields_by_name
            target: Any = request if outer else request.sampling
            if isinstance(value, list | tuple):
                getattr(target, name).extend(value)
            else:
                setattr(target, name, value)
        if isinstance(prompt, str):
            request.text = prompt
        elif len(prompt) and isinstance(prompt[0], Mapping):
            messages = cast(Sequence[Mapping[str, str]], prompt)
            request.chat.messages.extend(ChatMessage(**message) for message in messages)
        else:
            request.tokens.SetInParent()
            request.tokens.ids.extend(cast(Sequence[int], prompt))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not a request: {error}") from error
    return request


def error_from_status(code: grpc.StatusCode, details: str | None) -> LBError:
    """The error of our hierarchy that a server answered with."""
    known = (
        *(InvalidRequest, UnknownModel, Overloaded, NotReady),
        *(Unavailable, DeadlineExceeded, StalledReader),
    )
    kinds: dict[grpc.StatusCode, type[LBError]] = {kind.code: kind for kind in known}
    return kinds.get(code, LBError)(details or code.name)


@dataclass
class _Collector:
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
            reason = FinishReason.Name(response.finish_reason)
            self.result = Result(
                text="".join(self.texts),
                token_ids=tuple(self.token_ids),
                finish_reason=reason.removeprefix("FINISH_REASON_").lower(),
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


def _route(metadata: Any) -> Route | None:
    """What a router said in the initial metadata of an answer."""
    said = {key: value for key, value in metadata or () if key.startswith("prefixlb-")}
    if "prefixlb-replica" not in said:
        return None
    return Route(
        replica=said["prefixlb-replica"],
        matched_tokens=int(said.get("prefixlb-matched-tokens", 0)),
        reason=said.get("prefixlb-reason", ""),
    )


class AsyncGeneration:
    """One answer as it arrives: iterate once over its pieces, then read `result`."""

    def __init__(self, call: aio.UnaryStreamCall[GenerateRequest, GenerateResponse]) -> None:
        self._call = call
        self._collector = _Collector()

    async def route(self) -> Route | None:
        """Where the request went, as soon as that is known."""
        return _route(await self._call.initial_metadata())

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            async for response in self._call:
                yield self._collector.add(response, await self.route())
        except aio.AioRpcError as error:
            raise error_from_status(error.code(), error.details()) from error
        finally:
            self._call.cancel()  # a caller that stops early does not leave it running

    @property
    def result(self) -> Result:
        """The whole answer. Raises LBError before the last piece."""
        return self._collector.complete()

    def cancel(self) -> None:
        """Give up on the rest."""
        self._call.cancel()


class AsyncClient:
    """Talks to a router, or one replica, from asyncio: one connection, any number of requests."""

    def __init__(self, address: str) -> None:
        """`address` is host:port. Connects with the first request, inside a running event loop."""
        self.address = address
        self.channel = aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = InferenceStub(self.channel)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGeneration:
        """Send the prompt now; the answer is read from what this returns."""
        request = build_request(prompt, options)
        return AsyncGeneration(self._stub.Generate(request, timeout=options.get("timeout_s")))

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """The whole answer at once."""
        generation = self.generate(prompt, **options)
        async for _ in generation:
            pass
        return generation.result

    async def close(self) -> None:
        """End the connection and what still runs on it."""
        await self.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Generation:
    """One answer as it arrives: iterate once over its pieces, then read `result`."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._collector = _Collector()

    def route(self) -> Route | None:
        """Where the request went; waits until that is known."""
        return _route(self._call.initial_metadata())

    def __iter__(self) -> Iterator[Piece]:
        try:
            for response in self._call:
                yield self._collector.add(response, self.route())
        except grpc.RpcError as error:
            raise error_from_status(self._call.code(), self._call.details()) from error
        finally:
            self._call.cancel()

    @property
    def result(self) -> Result:
        """The whole answer. Raises LBError before the last piece."""
        return self._collector.complete()

    def cancel(self) -> None:
        """Give up on the rest; another thread may be reading it."""
        self._call.cancel()


class Client:
    """`AsyncClient` for programs without an event loop."""

    def __init__(self, address: str) -> None:
        """`address` is host:port. Connects with the first request."""
        self.address = address
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = InferenceStub(self.channel)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Send the prompt now; the answer is read from what this returns."""
        request = build_request(prompt, options)
        return Generation(self._stub.Generate(request, timeout=options.get("timeout_s")))

    def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Result:
        """The whole answer at once."""
        generation = self.generate(prompt, **options)
        for _ in generation:
            pass
        return generation.result

    def close(self) -> None:
        """End the connection and what still runs on it."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
