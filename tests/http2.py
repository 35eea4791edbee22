"""HTTP/2 by hand: frames as a careless or hostile client writes them."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hpack import Decoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field of HPACK, not indexed and not compressed; the value may be long."""
    return b"\0" + bytes([len(name)]) + name + _length(len(value)) + value


def _length(length: int) -> bytes:
    if length < 127:
        return bytes([length])
    out, length = bytearray([127]), length - 127
    while length >= 128:
        out.append(length % 128 + 128)
        length //= 128
    return bytes([*out, length])


def headers_of(
    path: bytes,
    *more: tuple[bytes, bytes],
    method: bytes = b"POST",
    content_type: bytes = b"application/grpc",
) -> bytes:
    """The header block of a call."""
    fields = (
        (b":method", method),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"here"),
        (b"content-type", content_type),
        (b"te", b"trailers"),
        *more,
    )
    return b"".join(literal(name, value) for name, value in fields)


def call_of(
    path: bytes, *more: tuple[bytes, bytes], message: bytes = b"", stream: int = 1
) -> bytes:
    """The frames of one call with its message."""
    wire = b"\0" + struct.pack(">I", len(message)) + message
    return frame(HEADERS, END_HEADERS, stream, headers_of(path, *more)) + frame(
        DATA, END_STREAM, stream, wire
    )


BEGIN = PREFACE + frame(SETTINGS, 0, 0)
"""What a connection begins with."""

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream, payload."""


class Connection:
    """Bytes out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = Decoder()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frames(self) -> AsyncIterator[Frame]:
        """Until the other side closes."""
        while True:
            try:
                header = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(header[:3]))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield header[3], header[4], int.from_bytes(header[5:9]) & 0x7FFFFFFF, payload

    async def kinds(self) -> list[int]:
        """Of all frames until the other side closes."""
        return [kind async for kind, *_ in self.frames()]

    async def answer(self) -> tuple[dict[str, str], bytes]:
        """What comes on stream 1, the connection's only one: headers with trailers, and data."""
        said, data = {}, b""
        async for kind, flags, stream, payload in self.frames():
            if stream == 1 and kind in (HEADERS, DATA):
                if kind == HEADERS:
                    said.update(self._decoder.decode(payload))
                else:
                    data += payload
                if flags & END_STREAM:
                    return said, data
        raise ConnectionError("closed before the end of the answer")


@asynccontextmanager
async def connected(port: int, begin: bytes = BEGIN) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(begin)
        yield Connection(reader, writer)
    finally:
        writer.close()
