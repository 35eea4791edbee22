"""A TCP address whose server can be changed, or taken away, while clients hold on to it."""

import asyncio
from contextlib import suppress


class Forwarder:
    """Passes bytes between clients of its own port and the port it points at."""

    def __init__(self, port: int, target: int) -> None:
        """Listens on loopback at `port`; `target` is a port of loopback too."""
        self.port = port
        self._target: int | None = target
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def point_at(self, target: int | None) -> None:
        """From now on another server, or none: connections there are end, new ones are closed."""
        self._target = target
        for client in self._clients:
            client.transport.abort()

    async def stop(self) -> None:
        self._server.close()
        serving = [task for task in self._clients.values() if task]
        self.point_at(None)
        if serving:
            await asyncio.wait(serving)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients[writer] = asyncio.current_task()
        try:
            if self._target is not None:
                await self._pass(reader, writer, self._target)
        except OSError:
            pass  # the server is away; so is the client's connection, then
        finally:
            del self._clients[writer]
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int
    ) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        try:
            there = asyncio.create_task(_pump(reader, server_writer))
            back = asyncio.create_task(_pump(server_reader, writer))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            for pump in (there, back):
                pump.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await pump
        finally:
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
