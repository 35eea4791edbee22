"""The server's own bounds: how many calls, how many pings."""

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from replica.server import MIN_PING_INTERVAL_MS, SPARE_CALLS
from tests.replica_rig import replica_rig

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04" + bytes(5)
PING = b"\x00\x00\x08\x06" + bytes(13)
PONG = (6, 1)
GOAWAY = 7


async def frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    """(type, flags) of the next HTTP/2 frame."""
    header = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(header[:3]))
    return header[3], header[4]


async def test_a_client_without_calls_may_ping_at_the_interval_it_is_allowed() -> None:
    async with replica_rig() as rig, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.replica.port)
        try:
            writer.write(PREFACE + SETTINGS)
            for answered in range(5):
                await asyncio.sleep(1.1 * MIN_PING_INTERVAL_MS / 1000)
                writer.write(PING)
                while (kind := await frame(reader)) != PONG:
                    assert kind[0] != GOAWAY, f"after {answered} pings"
        finally:
            writer.close()


async def test_more_calls_than_can_be_served_are_refused_and_then_taken_again() -> None:
    async with replica_rig(max_waiting=1, max_running=1) as rig:
        stub = health_pb2_grpc.HealthStub(rig.channel)
        request = health_pb2.HealthCheckRequest()
        watching = [stub.Watch(request) for _ in range(4 + SPARE_CALLS)]
        for call in watching:
            await call.read()
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Check(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in watching:
            call.cancel()
        async with asyncio.timeout(5):
            while True:
                try:
                    await stub.Check(request)
                    break
                except aio.AioRpcError:
                    await asyncio.sleep(0.02)
