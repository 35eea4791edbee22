"""A whole cluster on this machine: a private Redis, replicas and a router as child processes."""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Self

from proto.errors import LBError
from router.cli.child import Child
from router.cli.fleet_view import view_fleet
from router.cli.readiness import serves
from router.cli.redis_server import free_ports, redis_command
from router.cli.signals import held_back

Waiting = AbstractContextManager[Callable[[str, float], None]]

HOST = "127.0.0.1"
POLL_PERIOD_S = 0.1


class ClusterError(LBError):
    """The cluster does not come up."""


class LocalCluster:
    """Started on entry, when all of it serves; ended on exit: router, replicas, Redis.

    Between the two, a test may kill, freeze and start any of `redis`, `replicas` and `router`;
    a child comes back at its old address.
    """

    def __init__(
        self,
        *,
        model: Path,
        state_dir: Path,
        replicas: int = 2,
        policy: str = "cost",
        port: int | None = None,
        metrics_port: int | None = None,
        replica_flags: Sequence[str] = (),
        router_flags: Sequence[str] = (),
        start_timeout_s: float = 120.0,
        waiting: Callable[[], Waiting] = lambda: contextlib.nullcontext(
            lambda what, waited_s: None
        ),
    ) -> None:
        """`state_dir` gets logs and the cluster's secret; ports are the router's, None: a free one.

        Each wait enters `waiting()` and calls what that gives with what is being waited for and
        the seconds so far.
        """
        ports = iter(free_ports(2 * replicas + 3))
        self.state_dir = state_dir
        self.secret_file = state_dir / "hash-secret"
        self._model = model.resolve()
        self._start_timeout_s = start_timeout_s
        self._waiting = waiting
        redis_port = next(ports)
        self.redis_url = f"redis://{HOST}:{redis_port}/0"
        self.redis = Child(
            "redis",
            redis_command(redis_port, state_dir),
            address=f"{HOST}:{redis_port}",
            log=state_dir / "redis.log",
        )
        self.replicas = [
            self._replica(f"replica-{index}", next(ports), next(ports), replicas, replica_flags)
            for index in range(replicas)
        ]
        self._router_port = port or next(ports)
        self._router_metrics_port = metrics_port or next(ports)
        self._router_flags = router_flags
        self.router = self._router(policy)

    def _replica(
        self, name: str, port: int, metrics_port: int, replicas: int, flags: Sequence[str]
    ) -> Child:
        threads = max(1, (os.cpu_count() or 1) // replicas)
        return self._python(
            "replica",
            name,
            port,
            metrics_port,
            ["--replica-id", name, "--model", str(self._model), *flags],
            # Replicas share the cores: none takes them all, none spins while another computes.
            env={"REPLICA_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
        )

    def _router(self, policy: str) -> Child:
        flags = ["--policy", policy, *self._router_flags]
        return self._python("router", "router", self._router_port, self._router_metrics_port, flags)

    def _python(
        self,
        module: str,
        name: str,
        port: int,
        metrics_port: int,
        flags: Sequence[str],
        env: dict[str, str] | None = None,
    ) -> Child:
        return Child(
            name,
            [
                *(sys.executable, "-P", "-m", module, "--host", HOST, "--port", str(port)),
                *("--metrics-port", str(metrics_port), "--redis-url", self.redis_url),
                *("--cluster", "local", "--hash-secret-file", str(self.secret_file), *flags),
            ],
            address=f"{HOST}:{port}",
            metrics_url=f"http://{HOST}:{metrics_port}/metrics",
            log=self.state_dir / f"{name}.log",
            env=env,
        )

    @property
    def status_page_url(self) -> str:
        """The router's, for a browser."""
        return f"http://{HOST}:{self._router_metrics_port}/ui"

    @property
    def children(self) -> list[Child]:
        """All of it, in the order in which it is ended."""
        return [self.router, *self.replicas, self.redis]

    def start(self) -> None:
        """Start what does not run and return once all of it serves. Raises ClusterError."""
        if not self.secret_file.exists():
            self.secret_file.touch(mode=0o600)
            self.secret_file.write_text(secrets.token_hex(32))
        for child in reversed(self.children):
            if not child.running:
                child.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Return once all serve and the router mirrors every replica. Raises ClusterError."""
        started_s = time.monotonic()
        conditions: list[tuple[str, Callable[[], bool]]] = [
            *((f"{one.name} to load", partial(serves, one.address)) for one in self.replicas),
            ("the router", partial(serves, self.router.address)),
            ("the router's mirrors", self.mirrored),
        ]
        with self._waiting() as tell:
            for what, holds in conditions:
                while not holds():
                    waited_s = time.monotonic() - started_s
                    self._check_start(what, waited_s)
                    tell(what, waited_s)
                    time.sleep(POLL_PERIOD_S)

    def mirrored(self) -> bool:
        """Whether the router follows every replica, these and no others, in its present life."""
        with contextlib.suppress(LBError):
            following = {
                view.status.lease.address
                for view in view_fleet(self.router.address)
                if view.status.live and view.follows
            }
            return following == {replica.address for replica in self.replicas}
        return False

    def _check_start(self, what: str, waited_s: float) -> None:
        for child in self.children:
            if not child.running:
                raise ClusterError(child.obituary())
        if waited_s > self._start_timeout_s:
            raise ClusterError(f"gave up waiting for {what} after {waited_s:.0f} s")

    def restart_router(self, policy: str) -> None:
        """Replace the router by one with another policy at the same address."""
        self.router.stop()
        self.router = self._router(policy)
        self.start()

    def stop(self) -> None:
        """End everything, in order; interrupted, at once. The secret dies with the cluster."""
        try:
            for child in self.children:
                child.stop()
        finally:
            with held_back():
                for child in self.children:
                    child.kill()
                self.secret_file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
