"""What is broken: a Redis, replicas of a tiny model and two routers, all of them processes."""

import asyncio
import random
import secrets
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import redis.asyncio

from proto import keys
from router.cli.child import Child
from router.cli.readiness import serves
from router.cli.redis_server import free_ports, redis_command
from tests.chaos.forwarder import Forwarder
from tests.chaos.relay import Relay
from tests.tiny_model import write_tiny_model

DIRECT, RELAYED = "direct", "relayed"
"""Names in Redis: the replicas', and the one whose streams the relay mangles."""

START_TIMEOUT_S = 120.0


class Field:
    """The first router reads what the replicas write, the second what the relay makes of it.

    All reach Redis through one address, behind which the server can change.
    """

    def __init__(self, directory: Path, *, replicas: int, rng: random.Random) -> None:
        ports = iter(free_ports(2 * replicas + 4 + 3))
        self._directory = directory
        self._secret = directory / "hash-secret"
        self.servers = [self._redis(f"redis-{index}", next(ports)) for index in range(2)]
        self.forwarder = Forwarder(next(ports), _port(self.servers[0]))
        self.redis_url = f"redis://127.0.0.1:{self.forwarder.port}/0"
        self.replicas = [
            self._python(
                f"replica-{index}", "replica", next(ports), next(ports), DIRECT,
                "--replica-id", f"replica-{index}", "--model", str(directory / "tiny"),
                "--slots", "2048", "--threads", "1",
            )
            for index in range(replicas)
        ]  # fmt: skip
        self.routers = [
            self._python(f"router-{name}", "router", next(ports), next(ports), name)
            for name in (DIRECT, RELAYED)
        ]
        self.relay = Relay(
            self.redis_url, DIRECT, RELAYED, [replica.name for replica in self.replicas], rng
        )
        self._parts = AsyncExitStack()

    @property
    def server(self) -> Child:
        """The Redis that the address leads to."""
        return self.servers[0]

    def client(self) -> "redis.asyncio.Redis":
        """To the present server itself."""
        return redis.asyncio.Redis(port=_port(self.server))

    def streams(self, router: Child) -> list[str]:
        """Keys of the delta streams that it reads."""
        cluster = (DIRECT, RELAYED)[self.routers.index(router)]
        return [keys.deltas(cluster, replica.name) for replica in self.replicas]

    async def fail_over(self) -> None:
        """Another server, by now a copy of the present one, takes its place; that one dies."""
        old, new = self.servers
        new.start()
        async with redis.asyncio.Redis(port=_port(new)) as copy:
            await self._listens(copy)
            await copy.replicaof("127.0.0.1", _port(old))
            while (await copy.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            old.kill()
            await copy.replicaof("NO", "ONE")
        self.servers = [new, old]
        self.lead_to_server()

    async def start_server(self) -> None:
        """Start the present server anew, empty, and let the address lead there."""
        self.server.start()
        async with self.client() as client:
            await self._listens(client)
        self.lead_to_server()

    def lead_to_server(self) -> None:
        """Let the address lead to the present server."""
        self.forwarder.point_at(_port(self.server))

    async def serving(self, child: Child) -> None:
        """Return once it says SERVING."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await asyncio.to_thread(serves, child.address):
                if not child.running:
                    raise RuntimeError(child.obituary())
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> Self:
        self._secret.touch(mode=0o600)
        self._secret.write_text(secrets.token_hex(16))
        await asyncio.to_thread(write_tiny_model, self._directory / "tiny")
        self._parts.callback(self._end)
        await self.forwarder.start()
        self._parts.push_async_callback(self.forwarder.stop)
        await self.start_server()
        relaying = asyncio.create_task(self.relay.run(), name="relay")
        self._parts.push_async_callback(_cancelled, relaying)
        for child in (*self.replicas, *self.routers):
            child.start()
        try:
            for child in (*self.replicas, *self.routers):
                await self.serving(child)
        except BaseException:
            await self._parts.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.aclose()

    def _end(self) -> None:
        for child in (*self.routers, *self.replicas, *self.servers):
            child.kill()

    @staticmethod
    async def _listens(client: Any) -> None:
        while True:
            try:
                await client.ping()
                return
            except redis.RedisError:
                await asyncio.sleep(0.02)

    def _redis(self, name: str, port: int) -> Child:
        directory = self._directory / name
        directory.mkdir()
        return Child(
            name,
            redis_command(port, directory),
            address=f"127.0.0.1:{port}",
            log=self._directory / f"{name}.log",
        )

    def _python(
        self, name: str, module: str, port: int, metrics_port: int, cluster: str, *flags: str
    ) -> Child:
        return Child(
            name,
            [
                *(sys.executable, "-P", "-m", module, "--port", str(port)),
                *("--metrics-port", str(metrics_port), "--redis-url", self.redis_url),
                *("--cluster", cluster, "--hash-secret-file", str(self._secret), *flags),
            ],
            address=f"127.0.0.1:{port}",
            metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
            log=self._directory / f"{name}.log",
            env={"OMP_WAIT_POLICY": "passive"},
        )


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))


def _port(server: Child) -> int:
    return int(server.address.rpartition(":")[2])
