"""Floods of frames that cost a client nothing: they are bounded, and others are served."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from tests.http2 import (
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    Connection,
    connected,
    frame,
    headers_of,
    literal,
)
from tests.plane_process import GENERATE, MIB, SMALL, Peak, answering, ask, lone_plane

MOST_BYTES = 40 * MIB
"""The calls that a connection may have take most of it; all that are tried would take more."""


@asynccontextmanager
async def flooded() -> AsyncIterator[Connection]:
    """A connection to a data plane, which serves others afterwards and has not grown."""
    async with answering() as replica:
        with lone_plane(replica) as (port, process):
            assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK
            peak = Peak(process)
            async with connected(port) as connection, asyncio.timeout(30):
                yield connection
                assert (await ask(port, SMALL))[0] is grpc.StatusCode.OK
            assert peak.bytes < MOST_BYTES, f"{peak.bytes / MIB:.0f} MiB"


async def test_continuations_that_bring_nothing_end_the_connection() -> None:
    """VU#421644, without a byte that a bound of bytes would count."""
    empty = frame(CONTINUATION, 0, 1)
    async with flooded() as connection:
        ended = asyncio.create_task(connection.kinds())
        await connection.send(frame(HEADERS, 0, 1, headers_of(GENERATE)))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                await connection.send(1000 * empty)
        assert GOAWAY in await ended


async def test_a_large_entry_of_the_header_table_is_not_held_as_often_as_it_is_named() -> None:
    """A byte names 4,000: each of these blocks would be 48 MB."""
    entry = b"\x40" + literal(b"x-filler", b"y" * 4000)[1:]
    block = headers_of(GENERATE) + entry + 12_000 * b"\xbe"
    async with flooded() as connection:
        ended = asyncio.create_task(connection.kinds())
        with contextlib.suppress(ConnectionError):
            for stream in range(1, 400, 2):
                await connection.send(frame(HEADERS, END_HEADERS, stream, block))
        assert GOAWAY in await ended


async def test_calls_beyond_those_that_a_connection_may_have_are_refused_and_then_end_it() -> None:
    most = 4096
    block = headers_of(GENERATE)
    async with flooded() as connection:
        ended = asyncio.create_task(connection.kinds())
        with contextlib.suppress(ConnectionError):
            for stream in range(1, 10 * most, 2):
                await connection.send(frame(HEADERS, END_HEADERS, stream, block))
        come = await ended
        assert RST_STREAM in come and GOAWAY in come
