"""Asks a process' page over HTTP, as a browser or a script would, from a test's event loop."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any


@dataclass(frozen=True)
class Page:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


async def ask(
    port: int,
    path: str,
    *,
    post: Any = None,
    head: bool = False,
    headers: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Page:
    """GET, HEAD if `head`, or POST of `post`: bytes as they are, anything else as JSON."""

    def send() -> Page:
        connection = HTTPConnection(host, port, timeout=30)
        kind = {} if post is None else {"Content-Type": "application/json"}
        body = post if post is None or isinstance(post, bytes) else json.dumps(post)
        method = "POST" if post is not None else "HEAD" if head else "GET"
        try:
            connection.request(method, path, body, {**kind, **(headers or {})})
            answer = connection.getresponse()
            return Page(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    return await asyncio.to_thread(send)
