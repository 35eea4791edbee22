"""A router and a replica behind one port that answer from a script; for tests of clients."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from proto.prefixlb.v1 import admin_pb2, delta_pb2, replica_pb2
from proto.prefixlb.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from proto.prefixlb.v1.inference_pb2 import (
    FinishReason,
    GenerateRequest,
    GenerateResponse,
    Usage,
)
from proto.prefixlb.v1.inference_pb2_grpc import (
    InferenceServicer,
    add_InferenceServicer_to_server,
)
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaServicer, add_ReplicaServicer_to_server
from tests.ports import free_port


class FakeRouter(InferenceServicer, AdminServicer, ReplicaServicer):
    """Answers "yes no" to every prompt but "full", "direct", "cut" and "forever"."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.most_running = 0
        self.cancelled = asyncio.Event()
        lease = delta_pb2.Lease(
            replica_id="replica-1", address=self.address, model="tiny", epoch=5, seq=9
        )
        load = delta_pb2.Load(
            running=2,
            waiting=1,
            pending_tokens=640,
            free_slots=100,
            evictable_slots=50,
            total_slots=160,
        )
        self.status = admin_pb2.ReplicaStatus(
            lease=lease,
            mirror=admin_pb2.MIRROR_STATE_STREAMING,
            epoch=5,
            seq=9,
            count=3,
            digest=77,
            load=load,
            requests=4,
            prompt_tokens=200,
            delivered_tokens=50,
            in_flight=3,
            delta_lag_s=0.012,
            live=True,
        )
        self.others: list[admin_pb2.ReplicaStatus] = []
        self.departures: list[admin_pb2.Departure] = []
        self.redis_away_s = 0.0
        self.audited: list[admin_pb2.AuditResponse] = []
        self.info = replica_pb2.InfoResponse(lease=lease, load=load, count=3, digest=77)

    async def Generate(
        self, request: GenerateRequest, context: Any
    ) -> AsyncIterator[GenerateResponse]:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if request.text == "full":
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "1024 requests in flight")
            routed = (
                ("prefixlb-replica", "replica-1"),
                ("prefixlb-matched-tokens", "32"),
                ("prefixlb-reason", "prefix"),
            )
            await context.send_initial_metadata(() if request.text == "direct" else routed)
            yield GenerateResponse(token_ids=[7], text="yes")
            if request.text == "cut":
                return
            forever = "forever" in (request.text, *(m.content for m in request.chat.messages[-1:]))
            await asyncio.sleep(60 if forever else 0.01)
            yield GenerateResponse(
                token_ids=[8, 9],
                text=" no",
                finish_reason=FinishReason.FINISH_REASON_LENGTH,
                usage=Usage(prompt_tokens=40, cached_tokens=32, completion_tokens=3),
            )
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def ListReplicas(
        self, request: admin_pb2.ListReplicasRequest, context: Any
    ) -> admin_pb2.ListReplicasResponse:
        return admin_pb2.ListReplicasResponse(
            replicas=[*self.others, self.status],
            departures=self.departures,
            redis_away_s=self.redis_away_s,
        )

    async def Audit(
        self, request: admin_pb2.AuditRequest, context: Any
    ) -> AsyncIterator[admin_pb2.AuditResponse]:
        for each in self.audited:
            yield each

    async def Info(
        self, request: replica_pb2.InfoRequest, context: Any
    ) -> replica_pb2.InfoResponse:
        return self.info


@contextlib.asynccontextmanager
async def fake_router() -> AsyncIterator[FakeRouter]:
    """Serves a FakeRouter at its address."""
    server, router = aio.server(), FakeRouter()
    add_InferenceServicer_to_server(router, server)
    add_AdminServicer_to_server(router, server)
    add_ReplicaServicer_to_server(router, server)
    server.add_insecure_port(router.address)
    await server.start()
    try:
        yield router
    finally:
        await server.stop(None)
