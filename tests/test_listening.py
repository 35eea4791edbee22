"""Bytes that end grpc.aio's server end neither ours nor its port."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto.listening import Listener
from proto.logs import configure_logs
from tests.http2 import BEGIN, call_of


def send(port: int, data: bytes) -> None:
    """Send `data`, and read until the server ends the connection or has nothing to say."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(data)
        connection.settimeout(0.5)
        with suppress(TimeoutError, ConnectionError):
            while connection.recv(65536):
                pass


class Health(health_pb2_grpc.HealthServicer):
    """Watches last three seconds; checks are answered at once."""

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: object
    ) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: object
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        for _ in range(10):
            yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
            await asyncio.sleep(0.3)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener(lambda: aio.server(options=[("grpc.so_reuseport", 0)]), "127.0.0.1", 0)
    listener.add(lambda server: health_pb2_grpc.add_HealthServicer_to_server(Health(), server))
    await listener.start()
    yield listener
    await listener.stop(0)


async def serves(port: int) -> bool:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with suppress(aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            return True
        return False


async def test_a_method_that_is_no_utf8_costs_neither_the_port_nor_an_answer_that_runs(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    configure_logs("INFO")
    async with aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        answers = aiter(watch)
        await anext(answers)
        for _ in range(3):
            await asyncio.to_thread(send, listener.port, BEGIN + call_of(b"/\xff\xfe/x"))
            async with asyncio.timeout(5):
                while not await serves(listener.port):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert len([answer async for answer in answers]) == 9
    assert [record for record in caplog.records if record.exc_info] == []
    died = [record.getMessage() for record in caplog.records if "died" in record.getMessage()]
    assert len(died) == 3 and "\\xff" not in caplog.text


async def test_metadata_that_is_no_utf8_is_not_logged(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    configure_logs("INFO")
    caplog.set_level(logging.DEBUG)
    path = b"/grpc.health.v1.Health/Check"
    await asyncio.to_thread(
        send, listener.port, BEGIN + call_of(path, (b"user-agent", b"\xff\xfe\0"))
    )
    assert await serves(listener.port)
    assert "xff" not in caplog.text and "Traceback" not in caplog.text
