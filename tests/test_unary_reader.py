"""Calls whose message is unreadable, late or missing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import HealthStub, add_HealthServicer_to_server

from proto.prefixlb.v1.replica_pb2 import TokenizerRequest, TokenizerResponse
from proto.prefixlb.v1.replica_pb2_grpc import (
    ReplicaServicer,
    ReplicaStub,
    add_ReplicaServicer_to_server,
)
from proto.unary_reader import UnaryReader

ONE_ANSWER = "/grpc.health.v1.Health/Check"
ANSWERS = "/grpc.health.v1.Health/Watch"
GENERATED = "/prefixlb.v1.Replica/Tokenizer"
MALFORMED = b"\x0a\xff\xff"

Refusals = list[tuple[str, grpc.StatusCode]]


class Pieces(ReplicaServicer):
    """Answers as a generator, for ever; says when it was left."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def Tokenizer(
        self, request: TokenizerRequest, context: Any
    ) -> AsyncIterator[TokenizerResponse]:
        try:
            while True:
                yield TokenizerResponse(tokenizer_json=b"x")
                await asyncio.sleep(0)
        finally:
            self.left.set()


@asynccontextmanager
async def served(
    timeout_s: float = 10.0, pieces: Pieces | None = None
) -> AsyncIterator[tuple[aio.Channel, Refusals]]:
    refusals: Refusals = []
    reader = UnaryReader(refused=lambda *refusal: refusals.append(refusal), timeout_s=timeout_s)
    server = aio.server(interceptors=[reader])
    add_HealthServicer_to_server(health_aio.HealthServicer(), server)
    add_ReplicaServicer_to_server(pieces or Pieces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, refusals
    finally:
        await server.stop(0)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(10):
        return await call.code(), await call.details()


@pytest.mark.parametrize("method", [ONE_ANSWER, ANSWERS, GENERATED])
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (channel, refusals):
        code, details = await ended(channel.unary_stream(method)(MALFORMED))
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        f"what came is no request message of {method}",
    )
    assert refusals == [(method, code)]
    assert not caplog.records


@pytest.mark.parametrize("method", [ONE_ANSWER, ANSWERS])
async def test_a_call_whose_message_does_not_come_ends(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(timeout_s=0.05) as (channel, refusals):
        code, details = await ended(channel.stream_stream(method)())
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no request message within 0.05 s" in details
    assert refusals == [(method, code)]
    assert not caplog.records


async def test_a_call_that_ends_without_a_message_is_an_invalid_argument() -> None:
    async with served() as (channel, _):
        call = channel.stream_stream(ONE_ANSWER)()
        await call.done_writing()
        code, details = await ended(call)
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the call ended without a request message",
    )


async def test_a_client_that_goes_before_its_message_is_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as (channel, _):
        for _ in range(20):
            call = channel.stream_stream(ONE_ANSWER)()
            await asyncio.sleep(0.002)
            call.cancel()
        await HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert not caplog.records


async def test_calls_with_a_message_are_answered_as_ever() -> None:
    pieces = Pieces()
    async with served(pieces=pieces) as (channel, refusals):
        health = HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(request)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        call = ReplicaStub(channel).Tokenizer(TokenizerRequest())
        assert (await call.read()).tokenizer_json == b"x"
        call.cancel()
        async with asyncio.timeout(5):
            await pieces.left.wait()
        assert not refusals
