"""A replica that speaks HTTP/1.1 as other routers expect it, and costs next to nothing.

`python -m tests.bench.http1_replica PORT MESSAGES GAP_MS`: with 0 messages an answer is one object.
"""

import asyncio
import json
import sys
from typing import Any

MODEL = "bench"
FACTS = {
    **{"status": "ok", "object": "list", "data": [{"id": MODEL, "object": "model"}]},
    **{"model_id": MODEL, "model_path": MODEL, "served_model_name": MODEL, "version": "0.5.0"},
    **{"is_generation": True, "dp_size": 1, "tp_size": 1, "disaggregation_mode": "null"},
}
"""Whatever a router asks before it sends requests."""
COMPLETION = {
    **{"id": "1", "object": "text_completion", "created": 1_700_000_000, "model": MODEL},
    "choices": [{"index": 0, "text": "abcd", "logprobs": None, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 300, "completion_tokens": 7, "total_tokens": 307},
}


def whole(answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MESSAGE = chunk(b"data: " + json.dumps(COMPLETION).encode() + b"\n\n")
LAST = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
FACTS_SENT, COMPLETION_SENT = whole(FACTS), whole(COMPLETION)


class Replica(asyncio.Protocol):
    """One connection of a router."""

    def __init__(self, messages: int, gap_s: float) -> None:
        self._messages = messages
        self._gap_s = gap_s
        self._come = bytearray()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._come += data
        while (begin := self._come.find(b"\r\n\r\n") + 4) > 3:
            head = bytes(self._come[:begin]).lower()
            if b"transfer-encoding: chunked" in head:
                end = self._come.find(b"0\r\n\r\n", begin) + 5
                if end < 5:
                    return
            else:
                _, named, length = head.partition(b"content-length:")
                end = begin + (int(length.split(b"\r\n")[0]) if named else 0)
                if len(self._come) < end:
                    return
            del self._come[:end]
            self._answer(asked=head.startswith(b"post"))

    def _answer(self, *, asked: bool) -> None:
        if not asked:
            self._transport.write(FACTS_SENT)
        elif not self._messages:
            self._transport.write(COMPLETION_SENT)
        elif not self._gap_s:
            self._transport.write(HEAD + MESSAGE * self._messages + LAST)
        else:
            self._transport.write(HEAD)
            self._step(0)

    def _step(self, sent: int) -> None:
        if sent == self._messages:
            self._transport.write(LAST)
            return
        self._transport.write(MESSAGE)
        self._loop.call_later(self._gap_s, self._step, sent + 1)


async def _serve(port: int, messages: int, gap_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Replica(messages, gap_ms / 1000), "127.0.0.1", port, backlog=256
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
