"""One gRPC server: inference, replica, health and reflection on one port."""

from collections.abc import Callable

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto.keepalive import KEEPALIVE
from proto.limits import SERVER_LIMITS
from proto.listening import Listener
from proto.prefixlb.v1 import inference_pb2, replica_pb2
from proto.prefixlb.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from proto.prefixlb.v1.replica_pb2_grpc import add_ReplicaServicer_to_server
from proto.unary_reader import UnaryReader
from replica.inference_service import InferenceService
from replica.replica_service import ReplicaService

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
    replica_pb2.DESCRIPTOR.services_by_name["Replica"].full_name,
)

PATHS = {"/livez": SERVICES[1], "/readyz": SERVICES[0]}
"""On the metrics page, the services that they are about."""

LAST_MESSAGES_S = 0.5
"""Calls that watch health never end by themselves; all others are done sooner."""

SPARE_CALLS = 256
"""Calls beside those of Generate: health, snapshots, descriptions."""

MAX_UNSEEN_CALLS = 1 << 14
"""Calls that have come and wait to be looked at. gRPC ends those beyond it with CANCELLED, which
nobody tries again; its own bound, 1,000, is reached by one burst.
"""


class Server:
    """Listens once made; its health says SERVING from `start` to `drain`."""

    def __init__(
        self,
        inference: InferenceService,
        replica: ReplicaService,
        *,
        host: str,
        port: int,
        max_generate_calls: int,
        refused: Callable[[str, grpc.StatusCode], None],
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
    ) -> None:
        """Port 0 takes a free one; see `port`. Raises Unavailable if the address cannot be had.

        Above `max_generate_calls` and some spare ones gRPC itself answers RESOURCE_EXHAUSTED.
        `refused`: as of UnaryReader. `credentials`: as of Listener.
        """

        def make() -> aio.Server:
            return aio.server(
                options=[
                    *SERVER_LIMITS,
                    ("grpc.so_reuseport", 0),  # two on one port would be a mistake
                    ("grpc.server.max_pending_requests", MAX_UNSEEN_CALLS),
                    ("grpc.server.max_pending_requests_hard_limit", MAX_UNSEEN_CALLS),
                    *KEEPALIVE,
                ],
                interceptors=[UnaryReader(refused=refused)],
                maximum_concurrent_rpcs=max_generate_calls + SPARE_CALLS,
            )

        def register(server: aio.Server) -> None:
            add_InferenceServicer_to_server(inference, server)
            add_ReplicaServicer_to_server(replica, server)
            health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
            names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)

        self.health = health.aio.HealthServicer()
        self._listener = Listener(make, host, port, credentials)
        self._listener.add(register)

    @property
    def port(self) -> int:
        return self._listener.port

    async def start(self) -> None:
        for name in SERVICES:
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._listener.start()

    async def drain(self) -> None:
        """Health says NOT_SERVING; calls go on."""
        await self.health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Cancel what still runs, once last messages have had the time to leave."""
        await self._listener.stop(LAST_MESSAGES_S)
