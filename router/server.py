"""One port for inference, admin, health and reflection: the data plane, and a server behind it.

The data plane takes every call. It serves Generate itself and passes the others on, over a socket
that only this user can open.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from proto.errors import Unavailable
from proto.limits import SERVER_LIMITS
from proto.prefixlb.v1 import admin_pb2, inference_pb2
from proto.prefixlb.v1.admin_pb2_grpc import add_AdminServicer_to_server
from proto.tracing import Sampling
from proto.unary_reader import UnaryReader
from radix_rs import Plane, Router
from router.admin import Admin
from router.admission import Admission
from router.desk import Desk
from router.metrics import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    reflection.SERVICE_NAME,
)

OTHER_CALLS = 128
"""Calls besides those in flight: health checks and watches, and those that are being refused."""

QUIET_S = 0.25
"""Nothing in flight for this long after the port was closed: no accepted call is on its way."""

LAST_MESSAGES_S = 0.5
"""How long answers that are complete have to leave the process."""

POLL_S = 0.02


class Server:
    """Holds its port once made; takes calls from `start` on."""

    def __init__(
        self,
        router: Router,
        *,
        host: str,
        port: int,
        shards: int,
        max_inflight: int,
        queue_size: int,
        queue_timeout_s: float,
        max_connections: int,
        max_held_bytes: int,
        retries: int,
        retry_budget: float,
        write_stall_s: float,
        seed: int,
        sampling: Sampling | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Port 0 takes a free one; see `port`. `clock`: that of the router's other callers.

        `sampling`: which requests are traced; None: none is.

        Raises Unavailable if the address cannot be had.
        """
        self._directory = tempfile.TemporaryDirectory(prefix="prefixlb-")
        socket = Path(self._directory.name) / "behind"
        try:
            self.plane = Plane(
                router,
                host=host,
                port=port,
                shards=shards,
                max_inflight=max_inflight,
                queue_size=queue_size,
                queue_timeout_s=queue_timeout_s,
                max_open_calls=max_inflight + queue_size + OTHER_CALLS,
                max_connections=max_connections,
                max_held_bytes=max_held_bytes,
                retries=retries,
                retry_budget=retry_budget,
                write_stall_s=write_stall_s,
                behind=socket,
                first_token_buckets_s=FIRST_TOKEN_BUCKETS,
                inter_token_buckets_s=INTER_TOKEN_BUCKETS,
                now_s=clock(),
                seed=seed,
                sampling=(sampling.follows_parent, sampling.ids_below) if sampling else None,
            )
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error
        self._behind = aio.server(
            interceptors=[UnaryReader()],
            options=SERVER_LIMITS,
        )
        self._behind.add_insecure_port(f"unix:{socket}")
        self._desk: Desk | None = None

    @property
    def port(self) -> int:
        return self.plane.port

    def set_bounds(
        self,
        *,
        max_inflight: int,
        queue_size: int,
        queue_timeout_s: float,
        retries: int,
        retry_budget: float,
    ) -> None:
        """Other ones for the requests that come from now on."""
        self.plane.set_bounds(
            max_inflight=max_inflight,
            queue_size=queue_size,
            queue_timeout_s=queue_timeout_s,
            max_open_calls=max_inflight + queue_size + OTHER_CALLS,
            retries=retries,
            retry_budget=retry_budget,
        )

    def add(self, desk: Desk, admin: Admin, health: health_aio.HealthServicer) -> None:
        """What it serves; before `start`."""
        self._desk = desk
        add_AdminServicer_to_server(admin, self._behind)
        add_HealthServicer_to_server(health, self._behind)
        reflection.enable_server_reflection(SERVICES, self._behind)

    async def start(self) -> None:
        await self._behind.start()
        if self._desk is not None:
            self._desk.open()
        self.plane.start()

    async def drain(self, admission: Admission, timeout_s: float) -> None:
        """Take nothing new; return when the running requests are done or `timeout_s` is over."""
        self.plane.drain()
        try:
            async with asyncio.timeout(timeout_s):
                # Quiet, not only idle: a call that was accepted may not be counted yet.
                await admission.quiet(QUIET_S)
            async with asyncio.timeout(LAST_MESSAGES_S):
                # What is left are last messages on their way, and watchers of the health service.
                while self.plane.connections:  # noqa: ASYNC110 - other threads count
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return

    async def stop(self) -> None:
        """Cancel what still runs."""
        await asyncio.to_thread(self.plane.stop)
        if self._desk is not None:
            self._desk.close()
        await self._behind.stop(0)
        self._directory.cleanup()
