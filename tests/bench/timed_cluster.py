"""Replicas, Redis and a router that write down what the figures are made of, and a load on them.

All are processes of their own. The machine runs the load too, so it should have nothing else to do.
"""

import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redis

from proto.client import AsyncClient
from router.cli.child import Child
from router.cli.fleet_view import view_fleet
from router.cli.readiness import serves
from router.cli.redis_server import free_ports, redis_command
from tests.bench.delta_path import Arrival
from tests.tiny_model import write_tiny_model

CLIENTS = 6
PAUSE_S = 0.1
TURN_TOKENS, MAX_TOKENS, ANSWER_TOKENS = 64, 768, 16
START_TIMEOUT_S = 120.0


class Measured(NamedTuple):
    """By the processes themselves."""

    replicas: list[dict[str, Any]]
    """As in timed_replica.py."""
    batches: dict[str, list[Arrival]]
    """Of each replica, as its mirror had them."""
    bare_ms: list[float]
    """From XADD to XREAD, of a process that does nothing else."""


class TimedCluster(NamedTuple):
    """Processes that serve, and where they write what they measured when they end."""

    replicas: list[Child]
    routers: list[Child]
    """None or one."""
    bare: Child
    directory: Path

    def end(self) -> Measured:
        for child in (self.bare, *self.routers, *self.replicas):
            child.stop()
            if child.exit_code:
                raise RuntimeError(child.obituary())
        batches = [self._read(child) for child in self.routers]
        return Measured(
            [self._read(child) for child in self.replicas],
            {
                name: [Arrival(*times, bytes.fromhex(batch)) for *times, batch in each]
                for name, each in (batches[0] if batches else {}).items()
            },
            self._read(self.bare),
        )

    def _read(self, child: Child) -> Any:
        return json.loads((self.directory / f"{child.name}.json").read_text())


@contextmanager
def timed_cluster(
    *,
    model: Path | None,
    replicas: int,
    with_router: bool,
    slots: int,
    fill_blocks: int = 0,
    asleep: bool = False,
) -> Iterator[TimedCluster]:
    """`model`: None for the tiny one; `asleep`: it takes time, but no core, as on a GPU."""
    ports = iter(free_ports(2 * replicas + 3))
    with tempfile.TemporaryDirectory(prefix="prefixlb-bench-") as name:
        directory = Path(name)
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(16))
        if model is None:
            model = directory / "tiny"
            write_tiny_model(model)
        redis_port = next(ports)

        def child(name: str, module: str, *arguments: str) -> Child:
            port, metrics_port = next(ports), next(ports)
            return Child(
                name,
                [
                    *(sys.executable, "-m", module, str(directory / f"{name}.json"), *arguments),
                    *("--port", str(port), "--metrics-port", str(metrics_port)),
                    *("--redis-url", f"redis://127.0.0.1:{redis_port}/0"),
                    *("--hash-secret-file", str(secret)),
                ],
                address=f"127.0.0.1:{port}",
                log=directory / f"{name}.log",
                env={
                    "OMP_WAIT_POLICY": "passive",
                    "PREFIXLB_FILL_BLOCKS": str(fill_blocks),
                    "PREFIXLB_ASLEEP": str(int(asleep)),
                },
            )

        server = Child(
            "redis",
            redis_command(redis_port, directory),
            address=f"127.0.0.1:{redis_port}",
            log=directory / "redis.log",
        )
        serving = [
            child(
                f"replica-{number}", "tests.bench.timed_replica",
                "--replica-id", f"replica-{number}", "--model", str(model),
                "--slots", str(slots), "--threads", "1",
            )
            for number in range(replicas)
        ]  # fmt: skip
        routers = (
            [child("router", "tests.bench.timed_router", str(replicas))] if with_router else []
        )
        bare = Child(
            "bare",
            [
                *(sys.executable, "-m", "tests.bench.bare_stream"),
                *(str(directory / "bare.json"), f"redis://127.0.0.1:{redis_port}/0"),
            ],
            address="",
            log=directory / "bare.log",
        )
        started = [server, bare, *serving, *routers]
        try:
            server.start()
            _answers(redis_port)
            for each in started[1:]:
                each.start()
            for each in (*serving, *routers):
                _eventually(each, serves)
            for router in routers:
                _eventually(router, lambda address: _follows(address, replicas))
            yield TimedCluster(serving, routers, bare, directory)
        finally:
            for each in reversed(started):
                each.kill()


def _answers(redis_port: int) -> None:
    with redis.Redis(port=redis_port) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.02)


def _follows(router_address: str, replicas: int) -> bool:
    return [view.follows for view in view_fleet(router_address)] == [True] * replicas


def _eventually(child: Child, holds: Callable[[str], bool]) -> None:
    """Return once it holds at the child's address."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not holds(child.address):
        if not child.running or time.monotonic() > deadline_s:
            raise RuntimeError(child.obituary())
        time.sleep(0.05)


async def converse(address: str, *, vocabulary: int, seed: int, seconds: float) -> None:
    """Conversations with one of a few assistants, whose prompts grow turn by turn."""
    ends_s = time.monotonic() + seconds

    async def one(rng: random.Random) -> None:
        def tokens(count: int) -> list[int]:
            return rng.choices(range(3, vocabulary), k=count)

        async with AsyncClient(address) as client:
            while time.monotonic() < ends_s:
                prompt = random.Random(rng.randrange(8)).choices(range(3, vocabulary), k=192)
                while len(prompt) < MAX_TOKENS and time.monotonic() < ends_s:
                    prompt += tokens(TURN_TOKENS)
                    answer = await client.complete(
                        prompt, max_tokens=ANSWER_TOKENS, ignore_eos=True
                    )
                    prompt += answer.token_ids
                    await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))

    await asyncio.gather(*(one(random.Random(f"{seed} {n}")) for n in range(CLIENTS)))
