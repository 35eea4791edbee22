"""What the router keeps of one replica: lease, connection, whether it answers, totals."""

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Any, TypeVar

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto.errors import InvalidRequest
from proto.limits import check_length
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.prefixlb.v1.replica_pb2 import (
    InfoRequest,
    InfoResponse,
    SnapshotRequest,
    SnapshotResponse,
    TokenizerRequest,
    TokenizerResponse,
)
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from proto.text import TextCodec
from radix_rs import Plane, TokenTotals
from router.replica_channel import PROBE_TIMEOUT_S, Dialer, ReplicaChannel, caller_has_gone

SNAPSHOT_TIMEOUT_S = 60.0
TOKENIZER_TIMEOUT_S = 60.0

Message = TypeVar("Message")


class Liveness(Enum):
    LIVE = "live"  # answers, as far as its last request and its last check say
    DOUBTED = "doubted"  # failed a request; passed over where others are, until a check decides
    SUSPECT = "suspect"  # fails its checks; not picked until one succeeds


class Health(Enum):
    """Answer to one health check."""

    SERVING = "serving"
    REFUSING = "refusing"  # answers, and says that it does not serve
    SILENT = "silent"  # no answer in time, or no connection


class ReplicaState:
    """One replica while it is in the fleet's view; its connections close when it leaves."""

    def __init__(self, lease: Lease, plane: Plane, dialer: Dialer) -> None:
        """Raises RouterError if its address is none."""
        self.lease = lease
        self._plane = plane
        self.serial = plane.add_replica(
            lease.replica_id,
            address=lease.address,
            model=lease.model,
            page_size=lease.page_size,
            tokenizer_digest=lease.tokenizer_digest,
        )
        """What the data plane calls this life of the id."""
        self.liveness = Liveness.LIVE
        self.doubted = asyncio.Event()
        """Set while not LIVE, and when another replica claims its id: a check is due soon."""
        self.other_tokenizer = False
        """Not the one its model's text is tokenised with: text reaches it as it is."""
        self.silent_s = 0.0
        """For how long it was live, and Redis answered, without a batch of it: see silence.py."""
        self.silent_checks = 0
        """Health checks without an answer since the last one with an answer."""
        self.codec: TextCodec | None = None
        """Its tokenizer, once fetched. Nobody reads it here: Tokenizers refers to it weakly, so it
        stays for as long as a replica of it does.
        """
        self._channel = ReplicaChannel(lease.address, dialer)

    @property
    def id(self) -> str:
        return self.lease.replica_id

    @property
    def calls(self) -> int:
        """Requests on their way there or being answered."""
        return self._plane.activity(self.id).calls

    @property
    def unanswered(self) -> int:
        """Those whose answer has not begun."""
        return self._plane.activity(self.id).unanswered

    @property
    def heard_s(self) -> float:
        """When the last of any answer came, by `time.monotonic`."""
        return self._plane.activity(self.id).heard_s

    @property
    def tokens(self) -> TokenTotals:
        """Of completed requests, since the replica joined."""
        return self._plane.totals(self.id)

    def reusable(self, matched: int, prompt_tokens: int) -> int:
        """Of `matched` tokens those it can really reuse: the prompt's last it always computes."""
        page = self.lease.page_size or 1
        return min(matched, max(0, prompt_tokens - 1) // page * page)

    def snapshot(self) -> AsyncGenerator[SnapshotResponse, None]:
        """To be closed: a reader that gives up ends the call."""
        replica = ReplicaStub(self._channel.current())
        return _read(replica.Snapshot(SnapshotRequest(), timeout=SNAPSHOT_TIMEOUT_S))

    def tokenizer(self) -> AsyncGenerator[TokenizerResponse, None]:
        """To be closed, as `snapshot`."""
        replica = ReplicaStub(self._channel.current())
        return _read(replica.Tokenizer(TokenizerRequest(), timeout=TOKENIZER_TIMEOUT_S))

    async def epoch(self) -> int:
        """The epoch of its tree now. Raises AioRpcError."""
        return (await self._info()).lease.epoch

    async def refusal(self, prompt_tokens: int) -> str:
        """Why it would refuse a prompt for its length; empty if it would not, or does not say."""
        try:
            info = await self._info()
        except aio.AioRpcError:
            return ""
        except asyncio.CancelledError:
            if caller_has_gone():
                raise
            return ""
        context_length, num_slots = info.context_length, info.load.total_slots
        if not (context_length and num_slots):
            return ""
        try:
            check_length(prompt_tokens, context_length=context_length, num_slots=num_slots)
        except InvalidRequest as error:
            return str(error)
        return ""

    async def _info(self) -> InfoResponse:
        replica = ReplicaStub(self._channel.current())
        return await replica.Info(InfoRequest(), timeout=PROBE_TIMEOUT_S)

    async def health(self) -> Health:
        stub = health_pb2_grpc.HealthStub(self._channel.current())
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except aio.AioRpcError:
            return Health.SILENT
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return Health.SERVING if serving else Health.REFUSING

    def give_up_unanswered(self, why: str) -> None:
        """End the calls that have no answer yet: they go elsewhere."""
        self._plane.end_calls(self.id, why, only_unanswered=True)

    def end_calls(self, why: str) -> None:
        """End all."""
        self._plane.end_calls(self.id, why)

    def leave(self, why: str) -> None:
        """No call goes there any more, and those that run end."""
        self._plane.remove_replica(self.id, why)

    async def close(self) -> None:
        """End the connection, some time after it left."""
        await self._channel.close()


async def _read(call: aio.UnaryStreamCall[Any, Message]) -> AsyncGenerator[Message, None]:
    try:
        async for message in call:
            yield message
    finally:
        call.cancel()
