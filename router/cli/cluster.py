"""A whole cluster on this machine: a private Redis, replicas and a router as child processes."""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from proto.client import CHANNEL_OPTIONS
from proto.errors import LBError
from router.cli.child import Child
from router.cli.fleet_view import view_fleet
from router.cli.redis_server import free_ports, redis_command

HOST = "127.0.0.1"


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
        replica_flags: Sequence[str] = (),
        router_flags: Sequence[str] = (),
        start_timeout_s: float = 120.0,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`state_dir` gets logs and the cluster's secret; `port` is the router's, None: a free one.

        `report` is told what is being waited for.
        """
        ports = iter(free_ports(2 * replicas + 3))
        self.state_dir = state_dir
        self.secret_file = state_dir / "hash-secret"
        self._model = model.resolve()
        self._start_timeout_s = start_timeout_s
        self._report = report
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
        free, self._router_metrics_port = next(ports), next(ports)
        self._router_port = port or free
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
        deadline_s = time.monotonic() + self._start_timeout_s
        for replica in self.replicas:
            self._wait(f"{replica.name} to load", partial(serves, replica.address), deadline_s)
        self._wait("the router", partial(serves, self.router.address), deadline_s)
        self._wait("the router's mirrors", self.mirrored, deadline_s)

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

    def _wait(self, what: str, ready: Callable[[], bool], deadline_s: float) -> None:
        if ready():
            return
        self._report(f"waiting for {what}")
        while not ready():
            for child in self.children:
                if not child.running:
                    raise ClusterError(child.obituary())
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"gave up waiting for {what} after {self._start_timeout_s:.0f} s; "
                    f"logs are in {self.state_dir}"
                )
            time.sleep(0.1)

    def restart_router(self, policy: str) -> None:
        """Replace the router by one with another policy at the same address."""
        self.router.stop()
        self.router = self._router(policy)
        self.start()

    def stop(self) -> None:
        """End everything, in order; interrupted, at once."""
        try:
            for child in self.children:
                child.stop()
        finally:
            for child in self.children:
                child.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def serves(address: str) -> bool:
    """Whether the server at `address` says SERVING, by the standard health service."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == HealthCheckResponse.SERVING)
