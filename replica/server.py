"""One gRPC server: inference, replica, health and reflection on one port."""

from collections.abc import Callable

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto.errors import Unavailable
from proto.limits import SERVER_LIMITS
from proto.listening import listen
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

LAST_MESSAGES_S = 0.5
"""Calls that watch health never end by themselves; all others are done sooner."""

KEEPALIVE_S = 5.0
"""A connection that brings nothing for so long is asked for a sign of life."""

KEEPALIVE_TIMEOUT_S = 5.0
"""Without one after so long its client has vanished: connection and calls end."""

MIN_PING_INTERVAL_MS = 500
"""Clients and routers may ping this often, to find out soon that a replica is cut off."""

SPARE_CALLS = 256
"""Calls beside those of Generate: health, snapshots, descriptions."""


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
    ) -> None:
        """Port 0 takes a free one; see `port`. Raises Unavailable if the address cannot be had.

        Above `max_generate_calls` and some spare ones gRPC itself answers RESOURCE_EXHAUSTED.
        `refused`: as of UnaryReader.
        """
        self._server = aio.server(
            options=[
                *SERVER_LIMITS,
                ("grpc.so_reuseport", 0),  # two on one port would be a mistake
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
                ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
                ("grpc.http2.max_pings_without_data", 0),  # a prefill may take long
                ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),  # or a minute
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            ],
            interceptors=[UnaryReader(refused=refused)],
            maximum_concurrent_rpcs=max_generate_calls + SPARE_CALLS,
        )
        add_InferenceServicer_to_server(inference, self._server)
        add_ReplicaServicer_to_server(replica, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            self.port = listen(self._server, host, port)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error

    async def start(self) -> None:
        for name in SERVICES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def drain(self) -> None:
        """Health says NOT_SERVING; calls go on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Cancel what still runs, once last messages have had the time to leave."""
        await self._server.stop(LAST_MESSAGES_S)
