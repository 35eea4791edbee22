"""The connection to one replica: how it is dialled, and what a call on it fails with."""

from grpc import aio

from proto.limits import MAX_MESSAGE_BYTES
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.prefixlb.v1.replica_pb2 import InfoRequest
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub

PROBE_TIMEOUT_S = 1.0
"""For what every replica answers at once."""


def open_channel(address: str) -> aio.Channel:
    """A connection of its own, that comes back soon after its peer does."""
    return aio.insecure_channel(
        address,
        options=[
            ("grpc.enable_http_proxy", 0),  # replicas are dialled directly
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),  # only the data plane knows when a retry is safe
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 2000),  # an attempt to connect may take this long
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )


def failure(error: Exception) -> str:
    """An error on one line, for logs."""
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


async def ask_lease(address: str) -> Lease:
    """The lease of the replica at `address`, by Replica.Info. Raises AioRpcError."""
    async with open_channel(address) as channel:
        stub = ReplicaStub(channel)
        info = await stub.Info(InfoRequest(), timeout=PROBE_TIMEOUT_S)
    return info.lease
