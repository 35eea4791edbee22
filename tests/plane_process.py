"""The data plane as a process of its own: what it is asked, what it takes of memory."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import psutil
from grpc import aio

from tests.bench.http2_replica import Replica
from tests.live_router import request_of
from tests.ports import free_port

MIB = 2**20
GENERATE = b"/prefixlb.v1.Inference/Generate"
SMALL = request_of([1, 2, 3], model="bench").SerializeToString()


@contextmanager
def lone_plane(
    *arguments: object, run: Sequence[str] = ("-m", "tests.bench.lone_plane"), **environment: str
) -> Iterator[tuple[int, psutil.Process]]:
    """The data plane as a process: its port, and the process."""
    port = free_port()
    command = [sys.executable, *run, port, 2, *arguments]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as child:
        try:
            assert child.stdout and int(child.stdout.readline()) == port
            yield port, psutil.Process(child.pid)
        finally:
            child.kill()


@asynccontextmanager
async def answering(messages: int = 1, gap_s: float = 0.0) -> AsyncIterator[str]:
    """The address of a replica that answers."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Replica(messages, gap_s), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Peak:
    """The most memory a process had since this was made, beyond what it had then."""

    def __init__(self, process: psutil.Process) -> None:
        self._proc = Path(f"/proc/{process.pid}")
        (self._proc / "clear_refs").write_text("5")  # the peak until now is forgotten
        self._before = self._most()

    @property
    def bytes(self) -> int:
        return self._most() - self._before

    def _most(self) -> int:
        most = re.search(r"VmHWM:\s+(\d+) kB", (self._proc / "status").read_text())
        assert most
        return int(most[1]) * 1024


async def ask(port: int, message: bytes) -> tuple[grpc.StatusCode, str, dict[str, str | bytes]]:
    """How an ordinary client's call ends."""
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(GENERATE.decode())(message, timeout=20)
        with contextlib.suppress(aio.AioRpcError):
            async for _ in call:
                pass
        return await call.code(), await call.details(), dict(await call.trailing_metadata() or ())
