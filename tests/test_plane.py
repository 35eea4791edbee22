"""The router's port against clients that break rules, hurry, or read slowly."""

import asyncio
import random
import socket
import struct
from contextlib import suppress

import grpc
import psutil
import pytest
from grpc import aio

from proto.prefixlb.v1 import inference_pb2
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from tests.fake_replica import FakeReplica, Script, replicas
from tests.http2 import (
    BEGIN,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
    call_of,
    connected,
    frame,
    headers_of,
    literal,
)
from tests.live_router import LiveRouter, live_router, request_of, until
from tests.plane_process import GENERATE

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_thread_panics")]

TURNED_AWAY = 'prefixlb_router_clients_turned_away_total{reason="broken_http2"} 1.0'


async def serves(router: LiveRouter) -> bool:
    answer = await router.generate([1, 2, 3])
    return answer.code is grpc.StatusCode.OK


async def test_256_streams_at_once_bring_every_byte_as_it_was_sent(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{number}", redis_url) for number in range(3)]
    for replica in fleet:
        replica.script = Script(tokens=8, gap_s=0.01, text="{}" + "ü" * 300, store=False)
    expected = [f"{number}" + "ü" * 300 for number in range(8)] + [""]
    async with replicas(*fleet), live_router(redis_url) as router:
        await router.synced(*fleet)
        answers = await asyncio.gather(
            *(router.generate([number, *range(50)], timeout_s=60) for number in range(256))
        )
        for answer in answers:
            assert answer.code is grpc.StatusCode.OK, answer.details
            assert [message.text for message in answer.messages] == expected
        assert router.is_idle


def holds_back(fd: int) -> bool:
    """Whether what is small waits until what was sent before is acknowledged."""
    with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as shared:
        return not shared.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_small_writes_to_clients_and_replicas_are_not_held_back(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        assert await serves(router)
        sockets = [each for each in psutil.Process().net_connections("tcp") if each.raddr]
        sides = {
            "client": [each for each in sockets if each.laddr.port == router.running.port],
            "replica": [each for each in sockets if each.raddr.port == r0.port],
        }
        assert all(sides.values())
        waits = {side: [holds_back(each.fd) for each in of] for side, of in sides.items()}
        assert not any(map(any, waits.values())), waits


async def test_a_client_that_reads_slowly_slows_nobody_else(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        r0.script = Script(tokens=2000, text="x" * 10_000, store=False)
        slow = [router.inference.Generate(request_of([number])) for number in range(4)]
        for call in slow:
            await call.read()
        await until(lambda: r0.running == 4)
        r0.script = Script(tokens=20, store=False)
        async with asyncio.timeout(10):
            for number in range(20):
                assert len((await router.generate([number])).messages) == 21
        assert r0.running == 4  # their answers wait at the replica, not here
        for call in slow:
            call.cancel()
        await until(lambda: router.is_idle and r0.running == 0, 2.0, "nothing in flight")


async def test_ids_that_are_not_packed_are_the_same_prompt(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    ids = [1, 2, 3, 4, 5]
    one_by_one = b"".join(b"\x0d" + struct.pack("<I", each) for each in ids)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate(ids)
        await router.synced(r0)
        generate = router.channel.unary_stream(GENERATE.decode())
        call = generate(b"\x2a" + bytes([len(one_by_one)]) + one_by_one)
        async for _ in call:
            pass
        metadata = dict(await call.initial_metadata())
        assert metadata["prefixlb-matched-tokens"] == "4"
        assert list(r0.served[-1].request.tokens.ids) == ids


async def test_a_method_nobody_serves_is_unimplemented(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        for method in ("/prefixlb.v1.Inference/Nothing", "/nobody/Nothing", "/x"):
            call = router.channel.unary_unary(method)(b"")
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED, method


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        bytes(64),
        BEGIN + frame(DATA, 0, 1, b"x"),  # of no stream
        BEGIN + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff"),  # no HPACK
        BEGIN + frame(HEADERS, END_HEADERS, 2, headers_of(GENERATE)),  # an even stream
        BEGIN + frame(SETTINGS, 0, 0, b"\0"),
        BEGIN + struct.pack(">I", 2**24 - 1)[1:] + bytes(6),  # a frame far too large
        BEGIN + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    ],
    ids=["http1", "tls", "zeros", "data", "hpack", "even", "settings", "size", "window"],
)
async def test_bytes_that_are_no_http2_end_their_connection_and_nothing_else(
    redis_url: str, garbage: bytes
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with connected(router.running.port, garbage) as connection, asyncio.timeout(5):
            await connection.kinds()
        assert await serves(router)
        await router.nothing_left()
        assert TURNED_AWAY in await router.metrics()


async def test_a_message_cut_off_in_the_middle_ends_with_its_stream(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        begun = frame(HEADERS, END_HEADERS, 1, headers_of(GENERATE))
        cut = frame(DATA, END_STREAM, 1, b"\0\0\0\0\x64abc")
        async with connected(router.running.port) as connection, asyncio.timeout(5):
            await connection.send(begun + cut)
            said, data = await connection.answer()
        assert said["grpc-status"] == str(grpc.StatusCode.INVALID_ARGUMENT.value[0])
        assert said["grpc-message"] == "the call ended without a request message"
        assert not data and not r0.served
        await router.nothing_left()
        assert await serves(router)


@pytest.mark.parametrize(
    ("method", "content_type", "status"),
    [
        (b"POST", b"application/json", "415"),
        (b"GET", b"text/html", "415"),
        (b"GET", b"application/grpc", "405"),
    ],
)
async def test_what_is_no_call_is_told_what_this_port_speaks(
    redis_url: str, method: bytes, content_type: bytes, status: str
) -> None:
    block = headers_of(GENERATE, method=method, content_type=content_type)
    request = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, b"{}")
    async with live_router(redis_url) as router:
        async with connected(router.running.port) as connection, asyncio.timeout(5):
            await connection.send(request)
            said, data = await connection.answer()
        assert said == {":status": status, "content-type": "text/plain"}
        assert data.startswith(b"This port speaks gRPC")


@pytest.mark.parametrize(
    "path", [b"/\xff\xfe/x", b"/prefixlb.v1.Inference/\xff", b"*", b"/a b/c"], ids=range(4)
)
async def test_a_method_whose_name_is_none_costs_nothing(redis_url: str, path: bytes) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with connected(router.running.port) as connection, asyncio.timeout(5):
            await connection.send(call_of(path))
            async for kind, _, stream, _ in connection.frames():
                if stream == 1 and kind in (HEADERS, RST_STREAM):
                    break
        assert await router.serving("liveness")
        assert await serves(router)
        await router.nothing_left()


def given_up(streams: range) -> bytes:
    """Calls that are reset as soon as they begin."""
    cancel = struct.pack(">I", 8)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, headers_of(GENERATE))
        + frame(RST_STREAM, 0, stream, cancel)
        for stream in streams
    )


async def test_a_flood_of_streams_that_are_reset_at_once_ends_the_connection(
    redis_url: str,
) -> None:
    """CVE-2023-44487."""
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with connected(router.running.port) as connection, asyncio.timeout(20):
            ending = asyncio.create_task(ended(connection))
            with suppress(ConnectionError):
                for start in range(1, 40_000, 4000):
                    await connection.send(given_up(range(start, start + 4000, 2)))
            await ending
        assert await serves(router)
        assert TURNED_AWAY in await router.metrics()
        await router.nothing_left()


async def test_many_calls_given_up_at_once_cost_the_connections_others_nothing(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=20, gap_s=0.02, store=False)
    message = request_of([1, 2, 3]).SerializeToString()
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with connected(router.running.port) as connection, asyncio.timeout(20):
            await connection.send(call_of(GENERATE, message=message))
            await until(lambda: len(r0.served) == 1)
            await connection.send(given_up(range(3, 403, 2)))
            async for kind, flags, stream, _ in connection.frames():
                assert kind != GOAWAY
                if stream == 1 and kind == HEADERS and flags & END_STREAM:
                    break
            assert not r0.served[0].cancelled.is_set()
        await router.nothing_left()


async def ended(connection: Connection) -> None:
    """Return once a GOAWAY has come, or the end of the connection."""
    async for kind, *_ in connection.frames():
        if kind == GOAWAY:
            return


async def test_headers_without_end_are_bounded(redis_url: str) -> None:
    """A HEADERS frame and CONTINUATIONs that never end (VU#421644)."""
    r0 = FakeReplica("r0", redis_url)
    more = literal(b"x-filler", b"y" * 10_000)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        sent = 0
        async with connected(router.running.port) as connection, asyncio.timeout(20):
            ending = asyncio.create_task(ended(connection))
            await connection.send(frame(HEADERS, 0, 1, headers_of(GENERATE)))
            while not ending.done() and sent < 100 * 2**20:
                try:
                    await connection.send(frame(CONTINUATION, 0, 1, more))
                except ConnectionError:
                    break
                sent += len(more)
                await asyncio.sleep(0)
            await ending
        assert sent < 8 * 2**20
        assert await serves(router)
        await router.nothing_left()


async def test_pings_and_settings_without_end_do_not_pile_up_answers(redis_url: str) -> None:
    """A client that asks and never reads is no longer read."""
    r0 = FakeReplica("r0", redis_url)
    flood = (frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0)) * 1000
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with connected(router.running.port) as connection:
            sent = 0
            with pytest.raises((TimeoutError, ConnectionError)):
                while sent < 500 * 2**20:
                    async with asyncio.timeout(1.0):
                        await connection.send(flood)
                    sent += len(flood)
        assert await serves(router)
        await router.nothing_left()


async def test_a_window_of_one_byte_brings_the_answer_byte_by_byte(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=2, store=False)
    tiny = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1))
    message = request_of([1, 2, 3]).SerializeToString()
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        body = b""
        async with connected(router.running.port) as connection, asyncio.timeout(10):
            await connection.send(tiny + call_of(GENERATE, message=message))
            async for kind, flags, stream, payload in connection.frames():
                if stream == 1 and kind == DATA:
                    assert len(payload) <= 1
                    body += payload
                    await connection.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)))
                if stream == 1 and flags & END_STREAM and kind in (HEADERS, DATA):
                    break
        texts = []
        while body:
            length = int.from_bytes(body[1:5])
            texts.append(inference_pb2.GenerateResponse.FromString(body[5 : 5 + length]).text)
            body = body[5 + length :]
        assert texts == ["0 ", "1 ", ""]


async def test_random_frames_leave_a_router_that_serves(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    rng = random.Random(7)
    message = request_of([1, 2, 3]).SerializeToString()
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for _ in range(60):
            async with connected(router.running.port) as connection:
                data = bytearray(call_of(GENERATE, message=message))
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                await connection.send(bytes(data[: rng.randrange(1, len(data) + 1)]))
                await asyncio.sleep(0.01)
        assert await serves(router)
        await router.nothing_left()


async def test_calls_on_many_connections_are_spread_over_shards_and_answered(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url, shards=3) as router:
        await router.synced(r0)
        for number in range(9):
            options = [("grpc.use_local_subchannel_pool", 1)]
            address = f"127.0.0.1:{router.running.port}"
            async with aio.insecure_channel(address, options=options) as channel:
                call = InferenceStub(channel).Generate(request_of([number]))
                assert len([message async for message in call]) == 4
        await router.nothing_left(1.0)


async def test_above_the_bound_requests_wait_and_go_on_by_priority(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=0.2, tokens=1, store=False)
    async with replicas(r0), live_router(redis_url, max_inflight=1, queue_size=3) as router:
        await router.synced(r0)
        running = asyncio.create_task(router.generate([1]))
        await until(lambda: router.parts.admission.inflight == 1)
        waiting = []
        for token, priority in ((10, 0), (11, -1), (12, 5)):
            waiting.append(asyncio.create_task(router.generate([token], priority=priority)))
            await until(lambda: router.parts.plane.queued == len(waiting))
        page, held_bytes = await router.metrics(), router.parts.plane.held_bytes
        assert "prefixlb_router_requests_queued 3.0" in page
        assert f"prefixlb_router_requests_held_bytes {held_bytes:.1f}" in page and held_bytes
        assert "prefixlb_router_client_connections 1.0" in page
        refused = router.inference.Generate(request_of([13]))
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 requests are in flight, the most" in await refused.details()
        assert dict(await refused.trailing_metadata())["retry-after"] == "1"
        for task in (running, *waiting):
            assert (await task).code is grpc.StatusCode.OK
        served = [each.request.tokens.ids[0] for each in r0.served]
        assert served == [1, 12, 10, 11]
        assert router.is_idle


async def test_tenants_that_wait_take_turns_however_many_requests_each_has(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=0.2, tokens=1, store=False)
    async with replicas(r0), live_router(redis_url, max_inflight=1, queue_size=4) as router:
        await router.synced(r0)
        tasks = [asyncio.create_task(router.generate([1]))]
        await until(lambda: router.parts.admission.inflight == 1)
        for token, tenant in ((10, "a"), (11, "a"), (12, "a"), (20, "b")):
            tasks.append(asyncio.create_task(router.generate([token], cache_salt=tenant)))
            await until(lambda: router.parts.plane.queued == len(tasks) - 1)
        for task in tasks:
            assert (await task).code is grpc.StatusCode.OK
        assert [each.request.tokens.ids[0] for each in r0.served] == [1, 10, 20, 11, 12]
        assert router.is_idle


async def test_who_waits_may_leave_or_have_waited_too_long(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=60, store=False)
    limits = {"max_inflight": 1, "queue_size": 9, "queue_timeout_s": 0.3}
    async with replicas(r0), live_router(redis_url, **limits) as router:
        await router.synced(r0)
        running = router.inference.Generate(request_of([1]))
        await until(lambda: router.parts.admission.inflight == 1)
        leaves = router.inference.Generate(request_of([2]))
        await until(lambda: router.parts.plane.queued == 1)
        leaves.cancel()
        await until(lambda: router.parts.plane.queued == 0)
        late = await router.generate([3], timeout_s=0.1)
        assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
        too_long = await router.generate([4])
        assert too_long.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert too_long.details == "no request of this router ended within 0.3 s"
        running.cancel()
        await router.nothing_left(1.0)
        assert len(r0.served) == 1


async def test_a_compressed_request_is_read(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    ids = [7] * 5000
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = router.inference.Generate(request_of(ids), compression=compression)
            assert len([message async for message in call]) == 4
            assert list(r0.served[-1].request.tokens.ids) == ids
