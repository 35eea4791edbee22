"""What a caller imports: `AsyncClient` and `Client`, for a router or for one replica.

    async with AsyncClient("127.0.0.1:30000") as client:
        answer = client.generate([{"role": "user", "content": "Hello!"}], max_tokens=32)
        async for piece in answer:
            print(piece.text, end="")
        print(answer.result.cached_tokens, "of", answer.result.prompt_tokens, "tokens were cached")

Where TLS is spoken or tokens are asked for, a client takes `proto.credentials.Credentials` too.
Prompts and options are described in `proto.request`, results in `proto.answer`. Refusals and
failures arrive as the classes of `proto.errors`, by status code.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Self, Unpack

from grpc import aio

from proto.answer import Collector, Piece, Result, Route, route_from_metadata
from proto.credentials import IN_CLEAR, Credentials
from proto.errors import from_status
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, GenerateResponse
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.request import Options, Prompt, build_request


class AsyncGeneration:
    """One answer as it arrives: iterate once over its pieces, then read `result`."""

    def __init__(self, call: aio.UnaryStreamCall[GenerateRequest, GenerateResponse]) -> None:
        self._call = call
        self._collector = Collector()

    async def route(self) -> Route | None:
        """Where the request went, as soon as that is known."""
        return route_from_metadata(await self._call.initial_metadata())

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            with from_status():
                async for response in self._call:
                    yield self._collector.add(response, await self.route())
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

    def __init__(self, address: str, credentials: Credentials = IN_CLEAR) -> None:
        """`address` is host:port. Connects with the first request, inside a running event loop.

        Raises InvalidFile if a file of the credentials is no good.
        """
        self.address = address
        self.channel = credentials.aio_channel(address)
        self._metadata = aio.Metadata(*credentials.metadata)
        self._stub = InferenceStub(self.channel)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGeneration:
        """Send the prompt now; the answer is read from what this returns."""
        request = build_request(prompt, options)
        timeout_s = options.get("timeout_s")
        call = self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata)
        return AsyncGeneration(call)

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Generation:
    """One answer as it arrives: iterate once over its pieces, then read `result`."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._collector = Collector()

    def route(self) -> Route | None:
        """Where the request went; waits until that is known."""
        return route_from_metadata(self._call.initial_metadata())

    def __iter__(self) -> Iterator[Piece]:
        try:
            with from_status():
                for response in self._call:
                    yield self._collector.add(response, self.route())
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

    def __init__(self, address: str, credentials: Credentials = IN_CLEAR) -> None:
        """`address` is host:port. Connects with the first request.

        Raises InvalidFile if a file of the credentials is no good.
        """
        self.address = address
        self.channel = credentials.channel(address)
        self._metadata = credentials.metadata
        self._stub = InferenceStub(self.channel)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Send the prompt now; the answer is read from what this returns."""
        request = build_request(prompt, options)
        timeout_s = options.get("timeout_s")
        call = self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata)
        return Generation(call)

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

    def __exit__(self, *_: object) -> None:
        self.close()
