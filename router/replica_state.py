"""What the router keeps of one replica: lease, connection, whether it answers, totals."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto.prefixlb.v1.delta_pb2 import Lease
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, GenerateResponse, Usage
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.prefixlb.v1.replica_pb2 import (
    InfoRequest,
    SnapshotRequest,
    SnapshotResponse,
    TokenizerRequest,
    TokenizerResponse,
)
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from proto.text import TextCodec
from radix_rs import Pick
from router.replica_channel import PROBE_TIMEOUT_S, open_channel

SNAPSHOT_TIMEOUT_S = 60.0
TOKENIZER_TIMEOUT_S = 60.0

Message = TypeVar("Message")

GenerateCall = aio.UnaryStreamCall[GenerateRequest, GenerateResponse]


class Liveness(Enum):
    LIVE = "live"  # answers, as far as its last request and its last check say
    SUSPECT = "suspect"  # failed a request or its checks; not picked until a check succeeds


class Health(Enum):
    """Answer to one health check."""

    SERVING = "serving"
    REFUSING = "refusing"  # answers, and says that it does not serve
    SILENT = "silent"  # no answer in time, or no connection


@dataclass
class TokenTotals:
    """Of completed requests, since the replica joined."""

    requests: int = 0
    prompt: int = 0
    available: int = 0
    captured: int = 0
    delivered: int = 0


class ReplicaState:
    """One replica while it is in the fleet's view; its connection closes when it leaves."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.liveness = Liveness.LIVE
        self.doubted = asyncio.Event()
        """Set while SUSPECT, and when another replica claims its id: its next check is due soon."""
        self.other_tokenizer = False
        """Not the one its model's text is tokenised with: text reaches it as it is."""
        self.heard_s = float("-inf")
        """When the last message of any answer came."""
        self.ended_because = ""
        """Why its calls were ended from here."""
        self.silent_s = 0.0
        """For how long it was live, and Redis answered, without a batch of it: see silence.py."""
        self.silent_checks = 0
        """Health checks without an answer since the last one with an answer."""
        self.codec: TextCodec | None = None
        """Its tokenizer, once fetched. Nobody reads it here: Tokenizers refers to it weakly, so it
        stays for as long as a replica of it does.
        """
        self.tokens = TokenTotals()
        self.calls: set[GenerateCall] = set()
        """Requests on their way there or being answered."""
        self.unanswered: set[GenerateCall] = set()
        """Those whose first message has not come."""
        self._channel = open_channel(lease.address)
        self._inference = InferenceStub(self._channel)
        self._replica = ReplicaStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    @property
    def id(self) -> str:
        return self.lease.replica_id

    def generate(
        self, request: GenerateRequest, *, timeout_s: float | None, metadata: aio.Metadata
    ) -> GenerateCall:
        """Start the request; it belongs to `calls` until it is done."""
        call = self._inference.Generate(request, timeout=timeout_s, metadata=metadata)
        self.calls.add(call)
        self.unanswered.add(call)
        call.add_done_callback(self._done)
        return call

    def answered(self, call: GenerateCall) -> None:
        """Its first message came."""
        self.unanswered.discard(call)

    def _done(self, call: Any) -> None:
        self.calls.discard(call)
        self.unanswered.discard(call)

    def reusable(self, matched: int, prompt_tokens: int) -> int:
        """Of `matched` tokens those it can really reuse: the prompt's last it always computes."""
        page = self.lease.page_size or 1
        return min(matched, max(0, prompt_tokens - 1) // page * page)

    def count(self, usage: Usage, pick: Pick) -> None:
        """A request of `pick` is complete."""
        self.tokens.requests += 1
        self.tokens.prompt += usage.prompt_tokens
        self.tokens.available += self.reusable(pick.available, usage.prompt_tokens)
        self.tokens.captured += self.reusable(pick.matched, usage.prompt_tokens)
        self.tokens.delivered += usage.cached_tokens

    def snapshot(self) -> AsyncGenerator[SnapshotResponse, None]:
        """To be closed: a reader that gives up ends the call."""
        return _read(self._replica.Snapshot(SnapshotRequest(), timeout=SNAPSHOT_TIMEOUT_S))

    def tokenizer(self) -> AsyncGenerator[TokenizerResponse, None]:
        """To be closed, as `snapshot`."""
        return _read(self._replica.Tokenizer(TokenizerRequest(), timeout=TOKENIZER_TIMEOUT_S))

    async def epoch(self) -> int:
        """The epoch of its tree now. Raises AioRpcError."""
        info = await self._replica.Info(InfoRequest(), timeout=PROBE_TIMEOUT_S)
        return info.lease.epoch

    async def health(self) -> Health:
        request = health_pb2.HealthCheckRequest()
        try:
            answer = await self._health.Check(request, timeout=PROBE_TIMEOUT_S)
        except aio.AioRpcError:
            return Health.SILENT
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return Health.SERVING if serving else Health.REFUSING

    def give_up_unanswered(self) -> None:
        """End the calls that have no answer yet; whoever waits for one sees it cancelled."""
        self.ended_because = "it is silent"
        for call in list(self.unanswered):
            call.cancel()

    def end_calls(self, why: str) -> None:
        """End all; whoever reads one sees it cancelled."""
        self.ended_because = why
        for call in list(self.calls):
            call.cancel()

    async def close(self) -> None:
        """End every call and the connection."""
        self.end_calls("it left the fleet")
        await self._channel.close()


async def _read(call: aio.UnaryStreamCall[Any, Message]) -> AsyncGenerator[Message, None]:
    try:
        async for message in call:
            yield message
    finally:
        call.cancel()
