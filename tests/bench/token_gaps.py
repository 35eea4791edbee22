"""How evenly tokens reach a client."""

import selectors
import socket
import struct
import time

from tests.http2 import BEGIN, DATA, END_STREAM, WINDOW_UPDATE, call_of, frame
from tests.live_router import request_of

STREAMS = 8


def token_gaps(port: int) -> float:
    """The 99th percentile of the seconds between two messages, over some streams at once."""
    message = request_of([1, 2, 3], model="bench").SerializeToString()
    last_s: dict[int, float] = {}
    gaps_s: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))
        streams = range(1, 2 * STREAMS, 2)
        path = b"/prefixlb.v1.Inference/Generate"
        calls = b"".join(call_of(path, message=message, stream=stream) for stream in streams)
        connection.sendall(BEGIN + window + calls)
        running, come = set(streams), b""
        while running:
            come += connection.recv(65536)
            now_s = time.perf_counter()
            while len(come) >= 9 and len(come) >= 9 + (length := int.from_bytes(come[:3])):
                kind, flags = come[3], come[4]
                stream = int.from_bytes(come[5:9])
                come = come[9 + length :]
                if kind == DATA:
                    if stream in last_s:
                        gaps_s.append(now_s - last_s[stream])
                    last_s[stream] = now_s
                if stream in running and kind in (0, 1) and flags & END_STREAM:
                    running.discard(stream)
    return _p99(gaps_s)


def event_gaps(port: int, path: str, body: bytes) -> float:
    """The same over HTTP/1.1, where a message is an event and each stream has a connection."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    last_s: dict[socket.socket, float] = {}
    gaps_s: list[float] = []
    with selectors.DefaultSelector() as running:
        for _ in range(STREAMS):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            running.register(connection, selectors.EVENT_READ)
        while running.get_map():
            for key, _ in running.select():
                connection = key.fileobj  # type: ignore[assignment]
                come = connection.recv(65536)
                now_s = time.perf_counter()
                if b"data: {" in come:
                    if connection in last_s:
                        gaps_s.append(now_s - last_s[connection])
                    last_s[connection] = now_s
                if not come or come.endswith(b"0\r\n\r\n"):
                    running.unregister(connection)
                    connection.close()
    return _p99(gaps_s)


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]
