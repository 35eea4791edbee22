"""A gRPC server that keeps its address: nobody else's mistake or malice ends it."""

import asyncio
import ctypes
import logging
import socket
from collections.abc import Callable

import grpc
from grpc import aio

from proto.errors import Unavailable

log = logging.getLogger(__name__)

Register = Callable[[aio.Server], None]

CHECK_PERIOD_S = 0.5
"""So long nobody may listen."""

RELISTEN_PAUSE_S = 0.1
"""Between attempts to have the address again."""


class Listener:
    """Holds its port once made; takes calls from `start` on, until `stop`.

    A grpc.aio server is over when its accept loop raises, which any caller can bring about: a
    method name that is no UTF-8 is enough. Then another one listens at the same port.
    """

    def __init__(
        self,
        make: Callable[[], aio.Server],
        host: str,
        port: int,
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
    ) -> None:
        """`make`: a server with nothing registered. Port 0 takes a free one; see `port`.

        `credentials`: makes those of TLS; without it there is none.

        Raises Unavailable if the address cannot be had.
        """
        self._make = make
        self._host = host
        self._credentials = credentials
        self._registered: list[Register] = []
        self._fallen: list[aio.Server] = []
        """Their calls go on."""
        self._server = make()
        self.port = _listen(self._server, host, port, credentials)
        self._kept: asyncio.Task[None] | None = None

    def add(self, register: Register) -> None:
        """What it serves; before `start`."""
        self._registered.append(register)

    async def start(self) -> None:
        await self._start()
        self._kept = asyncio.create_task(self._keep(), name="listener")

    async def stop(self, grace_s: float) -> None:
        """Close the port at once; running calls have `grace_s`. May be called again with less."""
        if self._kept is not None:
            self._kept.cancel()
        await asyncio.gather(*(each.stop(grace_s) for each in (*self._fallen, self._server)))

    async def _start(self) -> None:
        for register in self._registered:
            register(self._server)
        await self._server.start()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            if await self._listens():
                continue
            log.error("listener died, listens again port=%d", self.port)
            _keep_for_ever(self._server)
            self._fallen.append(self._server)
            self._server = self._make()
            while True:
                try:
                    _listen(self._server, self._host, self.port, self._credentials)
                    break
                except Unavailable:
                    await asyncio.sleep(RELISTEN_PAUSE_S)
            await self._start()

    async def _listens(self) -> bool:
        """The server itself says nothing as long as calls of its run."""
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(self._host, self._host.strip("[]"))
        try:
            _, writer = await asyncio.open_connection(host, self.port)
        except ConnectionRefusedError:
            return False
        except OSError:  # such as too many open files
            return True
        writer.close()
        return True


def _keep_for_ever(server: aio.Server) -> None:
    """A server that died is never freed: gRPC would use what it frees, and crash the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def check_address(host: str, port: int) -> None:
    """Raises Unavailable with the system's reason if nobody can listen there now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error


def _listen(
    server: aio.Server,
    host: str,
    port: int,
    credentials: Callable[[], grpc.ServerCredentials] | None,
) -> int:
    """The port that was bound."""
    check_address(host, port)  # gRPC itself does not say why it fails
    try:
        if credentials is None:
            return server.add_insecure_port(f"{host}:{port}")
        return server.add_secure_port(f"{host}:{port}", credentials())
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error
