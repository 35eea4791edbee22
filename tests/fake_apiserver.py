"""An apiserver that knows EndpointSlices: it lists them and tells watchers what changes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class FakeApiserver:
    """`slices` by name; change them by `put` and `delete`."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 1
    refuses: int = 0
    """A status that every request is answered with; 0 for none."""
    refuses_watches: int = 0
    """The same of who watches alone."""
    says: bytes = b""
    """What every request is answered with instead of what is asked; nothing for that."""
    lists: int = 0
    asked: list[str] = field(default_factory=list)
    """Paths with their queries."""
    _watchers: list[asyncio.StreamWriter] = field(default_factory=list)
    _events: list[tuple[int, bytes]] = field(default_factory=list)
    """Each with the version that it made, for who watches from an earlier one."""

    def put(self, name: str, **fields: Any) -> None:
        what = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = self._named(name, fields)
        self._tell(what, self.slices[name])

    def delete(self, name: str) -> None:
        self.version += 1
        self._tell("DELETED", self.slices.pop(name))

    def lose(self, name: str) -> None:
        """As `delete`, but nobody is told."""
        del self.slices[name]

    def forget(self) -> None:
        """The version from which on somebody watches is too old."""
        status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}
        self._send({"type": "ERROR", "object": {**status, "message": "too old"}})

    def hang_up(self) -> None:
        for writer in self._watchers:
            writer.close()
        self._watchers.clear()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def _named(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {"name": name, "resourceVersion": str(self.version)}
        return {"metadata": metadata, "addressType": "IPv4", "endpoints": [], **fields}

    def _tell(self, what: str, each: dict[str, Any]) -> None:
        self._events.append((self.version, self._send({"type": what, "object": each})))

    def _send(self, event: dict[str, Any]) -> bytes:
        line = json.dumps(event).encode() + b"\n"
        chunk = b"%x\r\n%s\r\n" % (len(line), line)
        for writer in self._watchers:
            writer.write(chunk)
        return chunk

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        target = head.split()[1].decode()
        self.asked.append(target)
        query = parse_qs(urlsplit(target).query)
        if self.says:
            writer.write(self.says)
            writer.close()
        elif code := self.refuses or ("watch" in query and self.refuses_watches):
            _reply(writer, code, {"kind": "Status", "code": code, "message": "no"})
        elif "watch" in query:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            since = int(query["resourceVersion"][0])
            writer.writelines(chunk for version, chunk in self._events if version > since)
            self._watchers.append(writer)
        else:
            self.lists += 1
            metadata = {"resourceVersion": str(self.version)}
            _reply(writer, 200, {"metadata": metadata, "items": list(self.slices.values())})


def _reply(writer: asyncio.StreamWriter, code: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
    writer.close()


@asynccontextmanager
async def fake_apiserver(port: int = 0) -> AsyncIterator[tuple[FakeApiserver, str]]:
    """It and its URL."""
    apiserver = FakeApiserver()
    server = await asyncio.start_server(apiserver.answer, "127.0.0.1", port)
    try:
        yield apiserver, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        apiserver.hang_up()


def endpoint(address: str, uid: str = "", **conditions: bool) -> dict[str, Any]:
    """One of a slice; without an address, as that of an evicted pod is."""
    pod = {"targetRef": {"kind": "Pod", "uid": uid}} if uid else {}
    return {"addresses": [address] if address else [], "conditions": conditions, **pod}
