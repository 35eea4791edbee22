"""proto/client.py against a server that answers from a script."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from proto.client import AsyncClient, Client, Route, build_request
from proto.errors import InvalidRequest, LBError, Overloaded, Unavailable
from proto.prefixlb.v1.inference_pb2 import (
    FinishReason,
    GenerateRequest,
    GenerateResponse,
    Usage,
)
from proto.prefixlb.v1.inference_pb2_grpc import (
    InferenceServicer,
    add_InferenceServicer_to_server,
)
from router.cli.redis_server import free_port


class ScriptedInference(InferenceServicer):
    """Answers "yes no" in two messages; refuses the prompt "full"; stops short at "cut"."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.cancelled = asyncio.Event()

    async def Generate(
        self, request: GenerateRequest, context: Any
    ) -> AsyncIterator[GenerateResponse]:
        self.requests.append(request)
        if request.text == "full":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "1024 requests in flight")
        routed = (
            ("prefixlb-replica", "replica-1"),
            ("prefixlb-matched-tokens", "32"),
            ("prefixlb-reason", "prefix"),
        )
        await context.send_initial_metadata(() if request.text == "direct" else routed)
        yield GenerateResponse(token_ids=[7], text="yes")
        if request.text == "cut":
            return
        if request.text == "forever":
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled.set()
        yield GenerateResponse(
            token_ids=[8, 9],
            text=" no",
            finish_reason=FinishReason.FINISH_REASON_LENGTH,
            usage=Usage(prompt_tokens=40, cached_tokens=32, completion_tokens=3),
        )


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, ScriptedInference]]:
    server, servicer = aio.server(), ScriptedInference()
    add_InferenceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{free_port()}"
    server.add_insecure_port(address)
    await server.start()
    yield address, servicer
    await server.stop(None)


async def test_pieces_arrive_one_by_one_and_the_result_gathers_them(
    served: tuple[str, ScriptedInference],
) -> None:
    async with AsyncClient(served[0]) as client:
        generation = client.generate("hello", max_tokens=3)
        assert await generation.route() == Route("replica-1", 32, "prefix")
        pieces = [piece async for piece in generation]
    assert [(piece.text, piece.token_ids) for piece in pieces] == [("yes", (7,)), (" no", (8, 9))]
    result = generation.result
    assert (result.text, result.token_ids, result.finish_reason) == ("yes no", (7, 8, 9), "length")
    assert (result.prompt_tokens, result.cached_tokens, result.completion_tokens) == (40, 32, 3)
    assert result.route == Route("replica-1", 32, "prefix")
    assert result.ttft_s is not None and 0 <= result.ttft_s <= result.duration_s


async def test_a_replica_asked_directly_gives_no_route(
    served: tuple[str, ScriptedInference],
) -> None:
    async with AsyncClient(served[0]) as client:
        assert (await client.complete("direct")).route is None


async def test_a_refusal_arrives_as_the_error_of_its_status(
    served: tuple[str, ScriptedInference],
) -> None:
    async with AsyncClient(served[0]) as client:
        with pytest.raises(Overloaded, match="1024 requests in flight"):
            await client.complete("full")


async def test_a_stream_without_a_last_message_is_an_error(
    served: tuple[str, ScriptedInference],
) -> None:
    async with AsyncClient(served[0]) as client:
        with pytest.raises(LBError, match="after 1 tokens"):
            await client.complete("cut")


async def test_a_caller_that_stops_reading_cancels_the_request(
    served: tuple[str, ScriptedInference],
) -> None:
    address, servicer = served
    async with AsyncClient(address) as client:
        pieces = aiter(client.generate("forever"))
        assert (await anext(pieces)).text == "yes"
        await pieces.aclose()  # type: ignore[attr-defined]  # it is an async generator
        await asyncio.wait_for(servicer.cancelled.wait(), 5)


async def test_the_blocking_client_gives_the_same(served: tuple[str, ScriptedInference]) -> None:
    def talk() -> None:
        with Client(served[0]) as client:
            result = client.complete([1, 2, 3], temperature=0.5, seed=9)
            assert (result.text, result.cached_tokens) == ("yes no", 32)
            with pytest.raises(Overloaded):
                client.complete("full")

    await asyncio.to_thread(talk)
    assert list(served[1].requests[0].tokens.ids) == [1, 2, 3]
    assert served[1].requests[0].sampling.seed == 9


async def test_nobody_listening_is_unavailable() -> None:
    async with AsyncClient(f"127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unavailable):
            await client.complete("hello")


def test_each_kind_of_prompt_and_option_reaches_its_field() -> None:
    text = build_request("hi", {"max_tokens": 4, "stop": ["\n", "END"], "cache_salt": "tenant"})
    assert text.text == "hi" and list(text.sampling.stop) == ["\n", "END"]
    assert text.sampling.max_tokens == 4 and text.cache_salt == "tenant"
    chat = build_request([{"role": "user", "content": "hi"}], {})
    assert [(m.role, m.content) for m in chat.chat.messages] == [("user", "hi")]
    assert not chat.sampling.HasField("max_tokens")
    assert build_request([], {}).WhichOneof("prompt") == "tokens"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("hi", {"max_tokens": -1}),
        ("hi", {"stop": "one text, not a list"}),
        ("hi", {"beams": 4}),
        ([{"role": "user", "text": "hi"}], {}),
        ([1, 2**32], {}),
        ([1, "two"], {}),
    ],
)
def test_what_the_message_cannot_carry_is_refused_before_it_is_sent(
    prompt: Any, options: Any
) -> None:
    with pytest.raises(InvalidRequest, match="not a request"):
        build_request(prompt, options)
