"""A replica that costs next to nothing: its answers are frames made beforehand.

`python -m tests.bench.http2_replica PORT MESSAGES GAP_MS`
"""

import asyncio
import struct
import sys

from tests.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
)

WINDOW = struct.pack(">I", 2**30)
MESSAGE = b"\0" + struct.pack(">I", 12) + b"\x0a\x04\x01\0\0\0\x12\x04abcd"
LAST = b"\0" + struct.pack(">I", 9) + b"\x18\x02\x22\x05\x08\xac\x02\x10\x07"
HEAD = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
TRAILERS = literal(b"grpc-status", b"0")


class Replica(asyncio.Protocol):
    """One connection of a router."""

    def __init__(self, messages: int, gap_s: float) -> None:
        self._messages = messages
        self._gap_s = gap_s
        self._come = bytearray()
        self._credit = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        many = struct.pack(">HI", 4, 2**30) + struct.pack(">HI", 3, 2**16)
        transport.write(frame(SETTINGS, 0, 0, many) + frame(WINDOW_UPDATE, 0, 0, WINDOW))

    def data_received(self, data: bytes) -> None:
        self._come += data
        if self._come.startswith(PREFACE):
            del self._come[: len(PREFACE)]
        while len(self._come) >= 9:
            length = int.from_bytes(self._come[:3])
            if len(self._come) < 9 + length:
                return
            kind, flags = self._come[3], self._come[4]
            stream = int.from_bytes(self._come[5:9]) & 0x7FFFFFFF
            payload = bytes(self._come[9 : 9 + length])
            del self._come[: 9 + length]
            self._frame(kind, flags, stream, payload)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._transport.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == DATA:
            self._credit += len(payload)
            if self._credit > 2**28:
                update = struct.pack(">I", self._credit)
                self._transport.write(frame(WINDOW_UPDATE, 0, 0, update))
                self._credit = 0
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            self._answer(stream)

    def _answer(self, stream: int) -> None:
        head = frame(HEADERS, END_HEADERS, stream, HEAD)
        message = frame(DATA, 0, stream, MESSAGE)
        last = frame(DATA, 0, stream, LAST)
        trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS)
        if not self._gap_s:
            self._transport.write(head + message * (self._messages - 1) + last + trailers)
            return

        def step(sent: int) -> None:
            if sent + 1 < self._messages:
                self._transport.write(message)
                self._loop.call_later(self._gap_s, step, sent + 1)
            else:
                self._transport.write(last + trailers)

        self._transport.write(head + message)
        self._loop.call_later(self._gap_s, step, 1)


async def _serve(port: int, messages: int, gap_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Replica(messages, gap_ms / 1000), "127.0.0.1", port, backlog=256
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
