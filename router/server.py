"""One gRPC server: inference, admin, health and reflection on one port."""

import asyncio

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from proto.keepalive import KEEPALIVE
from proto.limits import SERVER_LIMITS
from proto.listening import Listener
from proto.prefixlb.v1 import admin_pb2, inference_pb2
from proto.prefixlb.v1.admin_pb2_grpc import add_AdminServicer_to_server
from proto.prefixlb.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from proto.unary_reader import UnaryReader
from router.admin import Admin
from router.admission import Admission
from router.front import Front
from router.metrics import Metrics

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


class Server:
    """Holds its port once made; takes calls from `start` on."""

    def __init__(self, *, host: str, port: int, max_inflight: int, metrics: Metrics) -> None:
        """Port 0 takes a free one; see `port`. Raises Unavailable if the address cannot be had."""

        def make() -> aio.Server:
            return aio.server(
                interceptors=[UnaryReader(refused=metrics.count_refused)],
                maximum_concurrent_rpcs=max_inflight + OTHER_CALLS,
                options=[
                    ("grpc.so_reuseport", 0),  # a second router on the port would be a mistake
                    *KEEPALIVE,
                    *SERVER_LIMITS,
                ],
            )

        self._listener = Listener(make, host, port)

    @property
    def port(self) -> int:
        return self._listener.port

    def add(self, front: Front, admin: Admin, health: health_aio.HealthServicer) -> None:
        """What it serves; before `start`."""

        def register(server: aio.Server) -> None:
            add_InferenceServicer_to_server(front, server)
            add_AdminServicer_to_server(admin, server)
            add_HealthServicer_to_server(health, server)
            reflection.enable_server_reflection(SERVICES, server)

        self._listener.add(register)

    async def start(self) -> None:
        await self._listener.start()

    async def drain(self, admission: Admission, timeout_s: float) -> None:
        """Take nothing new; return when the running requests are done or `timeout_s` is over."""
        stopping = asyncio.create_task(self._listener.stop(timeout_s))
        # Quiet, not only idle: a call that was accepted may not have come to its handler yet.
        quiet = asyncio.create_task(admission.quiet(QUIET_S))
        await asyncio.wait({stopping, quiet}, return_when=asyncio.FIRST_COMPLETED)
        quiet.cancel()
        # What is left are last messages on their way, and watchers of the health service.
        await self._listener.stop(LAST_MESSAGES_S)
        await stopping

    async def stop(self) -> None:
        """Cancel what still runs."""
        await self._listener.stop(0)
