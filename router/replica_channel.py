"""The connection to one replica: how it is dialled, and what a call on it fails with."""

import asyncio

import grpc
from grpc import aio

from proto.credentials import CHANNEL_OPTIONS, channel_credentials
from proto.limits import MAX_MESSAGE_BYTES
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.prefixlb.v1.replica_pb2 import InfoRequest
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from proto.tls_files import Tls

PROBE_TIMEOUT_S = 1.0
"""For what every replica answers at once."""


OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # only the data plane knows when a retry is safe
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

RETIRED_S = 60.0
"""What still runs on a connection that was replaced may take this long."""


class Dialer:
    """How Python's connections to replicas are secured, as the data plane's are."""

    def __init__(self, server_name: str = "") -> None:
        """`server_name`: of every replica's certificate; else each has that of its address."""
        self._options: list[tuple[str, str | int]] = [*OPTIONS]
        if server_name:
            self._options.append(("grpc.ssl_target_name_override", server_name))
        self.credentials: grpc.ChannelCredentials | None = None
        """None: without TLS."""

    def use(self, tls: Tls) -> None:
        """From now on."""
        self.credentials = channel_credentials(tls)

    def open(self, address: str) -> aio.Channel:
        """A connection of its own, that comes back soon after its peer does."""
        if self.credentials is None:
            return aio.insecure_channel(address, options=self._options)
        return aio.secure_channel(address, self.credentials, options=self._options)


class ReplicaChannel:
    """The connection to one replica; another one for new calls once certificates changed."""

    def __init__(self, address: str, dialer: Dialer) -> None:
        self._address = address
        self._dialer = dialer
        self._retiring: set[asyncio.Task[None]] = set()
        self._open()

    def current(self) -> aio.Channel:
        """For a call that begins now."""
        if self._credentials is not self._dialer.credentials:
            retiring = asyncio.create_task(self._channel.close(RETIRED_S))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
            self._open()
        return self._channel

    async def close(self) -> None:
        """End it, and what runs on it."""
        for retiring in self._retiring:
            retiring.cancel()
        await self._channel.close()

    def _open(self) -> None:
        self._credentials = self._dialer.credentials
        self._channel = self._dialer.open(self._address)


def failure(error: Exception) -> str:
    """An error on one line, for logs."""
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


async def ask_lease(address: str, dialer: Dialer) -> Lease:
    """The lease of the replica at `address`, by Replica.Info. Raises AioRpcError."""
    async with dialer.open(address) as channel:
        stub = ReplicaStub(channel)
        info = await stub.Info(InfoRequest(), timeout=PROBE_TIMEOUT_S)
    return info.lease


def caller_has_gone() -> bool:
    """Whether a cancellation is its doing: else a replica left, and took its calls with it."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())
