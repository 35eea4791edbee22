"""proto/client.py against a server that answers from a script."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proto.answer import Route
from proto.client import AsyncClient, Client
from proto.errors import InvalidRequest, LBError, Overloaded, Unavailable
from proto.request import build_request
from tests.fake_router import FakeRouter, fake_router
from tests.ports import free_port


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as router:
        yield router


async def test_pieces_arrive_one_by_one_and_the_result_gathers_them(
    router: FakeRouter,
) -> None:
    async with AsyncClient(router.address) as client:
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
    router: FakeRouter,
) -> None:
    async with AsyncClient(router.address) as client:
        assert (await client.complete("direct")).route is None


async def test_a_refusal_arrives_as_the_error_of_its_status(
    router: FakeRouter,
) -> None:
    async with AsyncClient(router.address) as client:
        with pytest.raises(Overloaded, match="1024 requests in flight"):
            await client.complete("full")


async def test_a_stream_without_a_last_message_is_an_error(
    router: FakeRouter,
) -> None:
    async with AsyncClient(router.address) as client:
        with pytest.raises(LBError, match="after 1 tokens"):
            await client.complete("cut")


async def test_a_caller_that_stops_reading_cancels_the_request(
    router: FakeRouter,
) -> None:
    async with AsyncClient(router.address) as client:
        pieces = aiter(client.generate("forever"))
        assert (await anext(pieces)).text == "yes"
        await pieces.aclose()  # type: ignore[attr-defined]  # it is an async generator
        await asyncio.wait_for(router.cancelled.wait(), 5)


async def test_the_blocking_client_gives_the_same(router: FakeRouter) -> None:
    def talk() -> None:
        with Client(router.address) as client:
            result = client.complete([1, 2, 3], temperature=0.5, seed=9)
            assert (result.text, result.cached_tokens) == ("yes no", 32)
            with pytest.raises(Overloaded):
                client.complete("full")

    await asyncio.to_thread(talk)
    assert list(router.requests[0].tokens.ids) == [1, 2, 3]
    assert router.requests[0].sampling.seed == 9


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


async def test_a_client_dials_on_every_second_at_least_while_its_router_is_away() -> None:
    dialled: list[float] = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(asyncio.get_running_loop().time())
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, AsyncClient(f"127.0.0.1:{port}") as client:
        waiting = asyncio.create_task(client.channel.channel_ready())
        async with asyncio.timeout(6.0):
            while len(dialled) < 6:
                await asyncio.wait((waiting,), timeout=0.02)
        waiting.cancel()
    assert all(after - before < 1.5 for before, after in itertools.pairwise(dialled))
