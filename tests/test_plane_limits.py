"""What the router's port takes of memory, connections and time, however it is abused."""

import asyncio
import contextlib
import gzip
import signal
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.authority import Authority
from tests.fake_replica import FakeReplica, Script, replicas
from tests.http2 import (
    ACK,
    BEGIN,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
    call_of,
    connected,
    frame,
    headers_of,
)
from tests.live_router import live_router, request_of
from tests.plane_process import GENERATE, MIB, SMALL, Peak, answering, ask, lone_plane

BOUND_BYTES = 64 * MIB
BESIDE_BYTES = 40 * MIB
"""What connections, reading and the allocator may take beyond the bound."""
REQUEST_WINDOW_BYTES = MIB


def padded(size_bytes: int) -> bytes:
    """A request with a field that nobody knows: it costs what it holds and means nothing."""
    padding = size_bytes - len(SMALL)
    length = bytearray()
    while padding >= 128:
        length.append(padding % 128 + 128)
        padding //= 128
    return SMALL + b"\xfa\x06" + bytes([*length, padding]) + b"p" * (size_bytes - len(SMALL))


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """The address of a replica that takes little more than a connection."""
    ends = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(SETTINGS, 0, 0))
        await ends.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=65536)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ends.set()
        server.close()


async def acknowledged(connection: Connection) -> None:
    """Put the router's windows in force: they are small until it knows that a client knows."""
    async for kind, flags, _, _ in connection.frames():
        if kind == SETTINGS and not flags & ACK:
            await connection.send(frame(SETTINGS, ACK, 0))
            return


class Upload:
    """One call on a connection of its own, whose message is sent as the router lets it."""

    def __init__(
        self, port: int, message: bytes, keep_back: int = 0, *more: tuple[bytes, bytes]
    ) -> None:
        self._port = port
        self._message = message
        self._keep_back = keep_back
        self._headers = headers_of(GENERATE, *more)
        self.sent = asyncio.Event()
        """All but what is kept back."""
        self.rest = asyncio.Event()
        """The rest may go."""
        self.is_answered = False
        self.is_over = False

    async def run(self) -> None:
        flag = b"\1" if b"grpc-encoding" in self._headers else b"\0"
        wire = memoryview(flag + struct.pack(">I", len(self._message)) + self._message)
        first = len(wire) - self._keep_back
        async with connected(self._port) as connection:
            await acknowledged(connection)
            await connection.send(frame(HEADERS, END_HEADERS, 1, self._headers))
            self._windows = {0: 65535, 1: REQUEST_WINDOW_BYTES}
            self._grown = asyncio.Event()
            reading = asyncio.create_task(self._read(connection))
            try:
                with contextlib.suppress(ConnectionError):
                    await self._send(connection, wire[:first], 0 if self._keep_back else END_STREAM)
                    self.sent.set()
                    if self._keep_back and not self.is_over:
                        await self.rest.wait()
                        await self._send(connection, wire[-self._keep_back :], END_STREAM)
                await reading
            finally:
                reading.cancel()
                self.sent.set()

    async def _send(self, connection: Connection, wire: memoryview, last_flags: int) -> None:
        at = 0
        while at < len(wire) and not self.is_over:
            part = wire[at : at + min(16384, *self._windows.values())]
            if not part:
                self._grown.clear()
                await self._grown.wait()
                continue
            at += len(part)
            is_last = at == len(wire)
            await connection.send(frame(DATA, last_flags if is_last else 0, 1, bytes(part)))
            for stream in self._windows:
                self._windows[stream] -= len(part)

    async def _read(self, connection: Connection) -> None:
        async for kind, flags, stream, payload in connection.frames():
            if kind == WINDOW_UPDATE:
                self._windows[stream] += int.from_bytes(payload)
                self._grown.set()
            elif stream == 1 and kind in (DATA, HEADERS, RST_STREAM):
                self.is_answered |= kind == DATA
                if kind == RST_STREAM or flags & END_STREAM:
                    self.is_over = True
                    self._grown.set()
                    return


@asynccontextmanager
async def started(uploads: Sequence[Upload]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """All of them at once, until the block ends."""
    running = [asyncio.create_task(upload.run()) for upload in uploads]
    try:
        yield running
    finally:
        for task in running:
            task.cancel()


@pytest.mark.parametrize(("calls", "size_bytes"), [(40, 15 * MIB), (200, 4 * MIB)])
async def test_uploads_that_never_end_take_no_more_memory_than_the_bound(
    calls: int, size_bytes: int
) -> None:
    large = padded(size_bytes)
    async with answering() as replica:
        with lone_plane(replica, "--max-held-bytes", BOUND_BYTES) as (port, process):
            peak = Peak(process)
            uploads = [Upload(port, large, keep_back=1) for _ in range(calls)]
            async with started(uploads) as running, asyncio.timeout(60):
                while not all(upload.sent.is_set() for upload in uploads):
                    assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK
                held = sum(not upload.is_over for upload in uploads)
                assert 0 < held <= BOUND_BYTES / size_bytes

                # One more is told when to ask again; what is small is served beside them.
                code, details, trailers = await ask(port, padded(8 * MIB))
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "of the 67108864 that this router may hold" in details
                assert trailers["retry-after"] == "1"
                assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK

                for upload in uploads:
                    upload.rest.set()
                await asyncio.gather(*running)
                assert any(upload.is_answered for upload in uploads), "some of them ended"
            assert (await ask(port, padded(8 * MIB)))[0] is grpc.StatusCode.OK
            assert peak.bytes < BOUND_BYTES + BESIDE_BYTES, f"{peak.bytes / MIB:.0f} MiB"


async def test_what_inflates_takes_no_more_memory_than_the_bound() -> None:
    bomb = gzip.compress(padded(15 * MIB))
    assert len(bomb) < 32_000
    async with silent() as replica:
        with lone_plane(replica, "--max-held-bytes", BOUND_BYTES) as (port, process):
            peak = Peak(process)
            uploads = [Upload(port, bomb, 0, (b"grpc-encoding", b"gzip")) for _ in range(60)]
            async with started(uploads), asyncio.timeout(60):
                # Two are held until they are answered, as what is read is held twice for a moment.
                while sum(upload.is_over for upload in uploads) < 57:  # noqa: ASYNC110 - counts
                    await asyncio.sleep(0.02)
                assert not any(upload.is_answered for upload in uploads)
            assert peak.bytes < BOUND_BYTES + BESIDE_BYTES, f"{peak.bytes / MIB:.0f} MiB"


@pytest.mark.redis
async def test_calls_to_the_control_plane_that_stay_open_take_nothing_from_requests(
    redis_url: str,
) -> None:
    replica = FakeReplica("r0", redis_url)
    watch = headers_of(b"/grpc.health.v1.Health/Watch")
    async with replicas(replica), live_router(redis_url, max_held_bytes=BOUND_BYTES) as router:
        await router.ready()
        async with connected(router.running.port) as connection:
            await acknowledged(connection)
            for stream in range(1, 2 * 100, 2):
                begin = frame(HEADERS, END_HEADERS, stream, watch)
                await connection.send(begin + frame(DATA, 0, stream, bytes(5)))
            begun = 0
            async for kind, *_ in connection.frames():
                begun += kind == HEADERS
                if begun == 100:
                    break
            assert (await router.generate([1, 2, 3])).code is grpc.StatusCode.OK
            assert await router.serving()


async def test_what_follows_a_message_is_not_kept() -> None:
    rubbish = b"".join(frame(DATA, 0, 1, bytes(16384)) for _ in range(60))
    message = b"\0" + struct.pack(">I", len(SMALL)) + SMALL
    begin = frame(HEADERS, END_HEADERS, 1, headers_of(GENERATE)) + frame(DATA, 0, 1, message)
    async with silent() as replica, AsyncExitStack() as stack:
        port, process = stack.enter_context(lone_plane(replica))
        peak = Peak(process)
        for _ in range(100):
            connection = await stack.enter_async_context(connected(port))
            await acknowledged(connection)
            await connection.send(begin)
            async for kind, *_ in connection.frames():
                if kind == WINDOW_UPDATE:  # the connection's window is open
                    break
            await connection.send(rubbish)
        await asyncio.sleep(0.3)
        assert peak.bytes < BESIDE_BYTES, f"{peak.bytes / MIB:.0f} MiB"


async def closed(connection: Connection, *, without: int | None = None) -> list[int]:
    """The kinds of frames that came until the router closed the connection."""
    kinds = []
    async for kind, flags, _, payload in connection.frames():
        kinds.append(kind)
        assert kind != without
        if kind == PING and not flags & ACK:
            await connection.send(frame(PING, ACK, 0, payload))
    return kinds


async def test_beyond_the_bound_who_rests_longest_makes_room() -> None:
    async with answering(messages=200, gap_s=0.02) as replica, AsyncExitStack() as stack:
        port, _ = stack.enter_context(lone_plane(replica, "--max-connections", 3))

        async def connect(begin: bytes) -> Connection:
            connection = await stack.enter_async_context(connected(port, begin))
            await asyncio.sleep(0.05)
            return connection

        async with asyncio.timeout(15):
            busy = await connect(BEGIN + call_of(GENERATE, message=SMALL))
            idle = await connect(BEGIN)
            halting = await connect(PREFACE[:10])  # it never goes on
            first = await connect(BEGIN + call_of(GENERATE, message=SMALL))
            assert GOAWAY in await closed(idle), "a GOAWAY, as it spoke HTTP/2"
            second = await connect(BEGIN + call_of(GENERATE, message=SMALL))
            assert await closed(halting) == [SETTINGS], "at once"
            refused = await connect(BEGIN)
            assert await closed(refused, without=SETTINGS) == [], "nobody rests"
            for connection in (busy, first, second):
                last = [flags async for flags in ends_of_stream(connection)]
                assert last, "whose calls went on"


async def ends_of_stream(connection: Connection) -> AsyncIterator[int]:
    async for kind, flags, stream, _ in connection.frames():
        if stream == 1 and kind in (DATA, HEADERS) and flags & END_STREAM:
            yield flags
            return


async def test_who_halts_in_the_handshake_of_tls_makes_room(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("tls", "127.0.0.1")
    async with answering() as replica, AsyncExitStack() as stack:
        flags = ("--tls", pair.cert, pair.key, "--max-connections", 1)
        port, _ = stack.enter_context(lone_plane(replica, *flags))
        halting = await stack.enter_async_context(connected(port, b"\x16\x03\x01"))
        await asyncio.sleep(0.05)
        await stack.enter_async_context(connected(port, b""))
        async with asyncio.timeout(3):
            assert await closed(halting) == []


async def test_who_leaves_and_does_not_go_is_closed() -> None:
    """It answers neither a GOAWAY nor a PING."""
    async with answering() as replica, AsyncExitStack() as stack:
        port, _ = stack.enter_context(lone_plane(replica, "--max-connections", 1))
        stays = await stack.enter_async_context(connected(port))
        await asyncio.sleep(0.05)
        for _ in range(3):
            assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK
        async with asyncio.timeout(3):
            assert GOAWAY in await stays.kinds()


@pytest.mark.redis
async def test_who_takes_nothing_and_gives_signs_of_life_is_closed(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1, text="x" * 50_000, store=False)
    windows = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**20))
    windows += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
    message = request_of([1, 2, 3]).SerializeToString()
    calls = [call_of(GENERATE, message=message, stream=1 + 2 * n) for n in range(400)]
    async with replicas(r0), live_router(redis_url, write_stall_s=0.5) as router:
        await router.synced(r0)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", router.running.port))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, PREFACE + windows + b"".join(calls))
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(10):
                    while True:
                        update = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))
                        await loop.sock_sendall(client, update)
                        await asyncio.sleep(0.05)
        assert (await router.generate([1, 2, 3])).code is grpc.StatusCode.OK


NEVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    if (name && !strcmp(name, "never.invalid")) sleep(60);
    return ((lookup *)dlsym(RTLD_NEXT, "getaddrinfo"))(name, service, hints, found);
}
"""


async def test_the_end_waits_for_no_name_server(tmp_path: Path) -> None:
    source, library = tmp_path / "never.c", tmp_path / "never.so"
    source.write_text(NEVER)
    compiled = await asyncio.create_subprocess_exec(
        "cc", "-shared", "-fPIC", "-o", library, source, "-ldl"
    )
    assert await compiled.wait() == 0
    with lone_plane("never.invalid:1", LD_PRELOAD=str(library)) as (port, process):
        async with connected(port, BEGIN + call_of(GENERATE, message=SMALL)):
            await asyncio.sleep(0.3)  # the name is being looked up
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 5)


HOLDS_THE_GIL = """
import ctypes, os, runpy, signal, threading

def hold(_):
    threading.Timer(0.1, os._exit, [1]).start()  # the end, should any Python run meanwhile
    ctypes.PyDLL(None).sleep(60)

signal.sigwait = hold
runpy.run_module("tests.bench.lone_plane", run_name="__main__")
"""


async def test_requests_of_token_ids_are_answered_while_no_python_runs() -> None:
    async with answering() as replica:
        with lone_plane(replica, run=("-c", HOLDS_THE_GIL)) as (port, process):
            await asyncio.sleep(0.5)
            for _ in range(20):
                async with asyncio.timeout(1.0):
                    assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK
            assert process.is_running()
