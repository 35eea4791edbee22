"""The server's own bounds: how many calls, how many pings."""

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto.keepalive import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, MIN_PING_INTERVAL_S
from replica.server import SPARE_CALLS
from tests.replica_rig import replica_rig

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04" + bytes(5)
PING = b"\x00\x00\x08\x06" + bytes(13)
PING_FRAME, PONG = (6, 0), (6, 1)
GOAWAY = 7

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/grpc.health.v1.Health/Watch"),
    (b":authority", b"replica"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def watch_health() -> bytes:
    """The frames of a call that does not end: headers as literals, then an empty message."""
    block = b"".join(
        bytes((0, len(name))) + name + bytes((len(value),)) + value for name, value in HEADERS
    )
    stream = bytes((0, 0, 0, 1))
    headers = len(block).to_bytes(3, "big") + b"\x01\x04" + stream + block
    return headers + b"\x00\x00\x05\x00\x01" + stream + bytes(5)


async def frame(reader: asyncio.StreamReader) -> tuple[tuple[int, int], bytes]:
    """((type, flags), payload) of the next HTTP/2 frame."""
    header = await reader.readexactly(9)
    return (header[3], header[4]), await reader.readexactly(int.from_bytes(header[:3]))


async def test_of_a_burst_of_calls_none_ends_cancelled_that_nobody_cancelled() -> None:
    async with replica_rig() as rig:
        check = health_pb2_grpc.HealthStub(rig.channel).Check
        calls = [check(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(4000)]
        codes = {await call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_a_client_without_calls_may_ping_at_the_interval_it_is_allowed() -> None:
    async with replica_rig() as rig, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.replica.port)
        try:
            writer.write(PREFACE + SETTINGS)
            for answered in range(5):
                await asyncio.sleep(1.1 * MIN_PING_INTERVAL_S)
                writer.write(PING)
                while (kind := (await frame(reader))[0]) != PONG:
                    assert kind[0] != GOAWAY, f"after {answered} pings"
        finally:
            writer.close()


@pytest.mark.slow
async def test_a_client_that_vanished_without_a_word_is_disconnected() -> None:
    async with replica_rig() as rig, asyncio.timeout(2 * (KEEPALIVE_S + KEEPALIVE_TIMEOUT_S)):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.replica.port)
        try:
            writer.write(PREFACE + SETTINGS + watch_health())
            pings = 0
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                while True:
                    kind, payload = await frame(reader)
                    if kind == PING_FRAME:
                        pings += 1
                        if pings == 1:  # at once, to measure the line
                            writer.write(PING[:4] + b"\x01" + PING[5:9] + payload)
            assert pings == 2
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
