"""What a router believes about its replicas, beside what each replica says of itself."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import grpc

from proto.credentials import IN_CLEAR, Credentials
from proto.enum_names import short_name
from proto.errors import from_status
from proto.prefixlb.v1.admin_pb2 import (
    ListReplicasRequest,
    ListReplicasResponse,
    MirrorState,
    ReplicaStatus,
)
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.prefixlb.v1.replica_pb2 import InfoRequest, InfoResponse
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from router.wording import replica_state

MAX_ASKED_AT_ONCE = 32


@dataclass(frozen=True)
class ReplicaView:
    """One replica from both sides, read a few milliseconds apart."""

    status: ReplicaStatus
    """The router's side."""
    info: InfoResponse | None
    """The replica's; None if it did not answer here, such as from outside its network."""

    @property
    def replica_id(self) -> str:
        return self.status.lease.replica_id

    @property
    def follows(self) -> bool:
        """The mirror streams, and from the tree that the replica has now."""
        streaming = self.status.mirror == MirrorState.MIRROR_STATE_STREAMING
        return streaming and self.info is not None and self.status.epoch == self.info.lease.epoch

    @property
    def mirror_equals_tree(self) -> bool:
        """Same life of the tree, same number of blocks, same digest: both hold the same blocks.

        The replica is asked last, and may have sent heartbeats meanwhile.
        """
        if self.info is None:
            return False
        mirror = (self.status.epoch, self.status.count, self.status.digest)
        return mirror == (self.info.lease.epoch, self.info.count, self.info.digest)

    @property
    def state(self) -> str:
        """The replica in a few words."""
        return replica_state(self.status)

    @property
    def mirror(self) -> str:
        """The mirror in a few words."""
        name = short_name(MirrorState, self.status.mirror)
        if self.info is None or self.status.mirror != MirrorState.MIRROR_STATE_STREAMING:
            return name
        if self.mirror_equals_tree:
            return f"{name}, equal"
        if self.status.epoch != self.info.lease.epoch:
            return f"{name}, older epoch"
        behind = self.info.lease.seq - self.status.seq
        return f"{name}, {behind} behind" if behind > 0 else name


@dataclass(frozen=True)
class FleetView:
    """All of a router's replicas, and what it says of the fleet beside them."""

    listed: ListReplicasResponse
    replicas: list[ReplicaView]
    """By id and address."""


def read_fleet(
    router_address: str, credentials: Credentials = IN_CLEAR, *, timeout_s: float = 5.0
) -> FleetView:
    """The fleet of a router, each replica asked at the same time.

    They are asked as the router is, in clear or over TLS by the same authorities, but without its
    token and for a certificate of their own address. Raises an LBError if the router does not
    answer.
    """
    with credentials.channel(router_address) as channel, from_status():
        listed = AdminStub(channel).ListReplicas(
            ListReplicasRequest(), timeout=timeout_s, metadata=credentials.metadata
        )
    own = dataclasses.replace(credentials, token="", tls_server_name="")
    statuses = sorted(listed.replicas, key=lambda s: (s.lease.replica_id, s.lease.address))
    with ThreadPoolExecutor(MAX_ASKED_AT_ONCE) as asking:
        infos = asking.map(
            partial(replica_info, credentials=own), [status.lease.address for status in statuses]
        )
        return FleetView(listed, list(map(ReplicaView, statuses, infos)))


def view_fleet(router_address: str, credentials: Credentials = IN_CLEAR) -> list[ReplicaView]:
    """The replicas of `read_fleet` alone."""
    return read_fleet(router_address, credentials).replicas


def replica_info(
    address: str, *, credentials: Credentials = IN_CLEAR, timeout_s: float = 1.0
) -> InfoResponse | None:
    """What the replica at `address` says; None if it does not answer in time."""
    with credentials.channel(address) as channel:
        try:
            return ReplicaStub(channel).Info(InfoRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return None
