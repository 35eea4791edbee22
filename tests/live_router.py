"""A whole router in this process, and a client's connection to it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import disable_created_metrics

from proto.credentials import IN_CLEAR, Credentials
from proto.prefixlb.v1 import admin_pb2, inference_pb2
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from radix_rs import derive_hash_key
from router.mirror import MirrorState
from router.process import Running, running
from router.settings import RouterSettings
from tests.fake_replica import FakeReplica


@dataclass
class Answer:
    """A complete answer as the client saw it."""

    messages: list[inference_pb2.GenerateResponse] = field(default_factory=list)
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    code: grpc.StatusCode | None = None
    details: str = ""

    @property
    def replica(self) -> str | bytes | None:
        return self.metadata.get("prefixlb-replica")

    @property
    def usage(self) -> inference_pb2.Usage:
        return self.messages[-1].usage


class LiveRouter:
    def __init__(self, running: Running, channel: aio.Channel) -> None:
        self.running = running
        self.parts = running.parts
        self.inference = InferenceStub(channel)
        self.admin = AdminStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)
        self.channel = channel

    async def generate(
        self,
        tokens: Sequence[int] | None = None,
        *,
        timeout_s: float = 20.0,
        metadata: Sequence[tuple[str, str]] = (),
        **fields: Any,
    ) -> Answer:
        """Send one request and read its answer to the end, whatever that is."""
        call = self.inference.Generate(
            request_of(tokens, **fields), timeout=timeout_s, metadata=aio.Metadata(*metadata)
        )
        answer = Answer()
        try:
            async for message in call:
                answer.messages.append(message)
        except aio.AioRpcError:
            pass
        answer.code, answer.details = await call.code(), await call.details()
        answer.metadata = dict(await call.initial_metadata() or ())
        return answer

    async def statuses(self) -> dict[str, admin_pb2.ReplicaStatus]:
        listed = await self.admin.ListReplicas(admin_pb2.ListReplicasRequest())
        return {status.lease.replica_id: status for status in listed.replicas}

    def member(self, replica: FakeReplica) -> Any:
        return self.parts.fleet.members[replica.id]

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight, nothing waits and nothing is held, by any count."""
        plane, index = self.parts.plane, self.parts.router
        return plane.inflight == plane.queued == plane.held_bytes == 0 and all(
            index.in_flight(name) == 0 and not member.state.calls
            for name, member in self.parts.fleet.members.items()
        )

    async def nothing_left(self, timeout_s: float = 2.0) -> None:
        """Return once nothing of any request is left."""
        await until(lambda: self.is_idle, timeout_s, "nothing left of any request")

    def has_codecs(self, *replicas: FakeReplica) -> bool:
        """Whether the tokenizers of all `replicas` are known."""
        members = self.parts.fleet.members
        return all(r.id in members and members[r.id].state.codec for r in replicas)

    def equal(self, replica: FakeReplica) -> bool:
        """Whether the mirror streams and holds exactly the replica's blocks."""
        member = self.parts.fleet.members.get(replica.id)
        if member is None or member.mirror.state is not MirrorState.STREAMING:
            return False
        mirror = self.parts.router.mirror(replica.id)
        return (mirror.epoch, mirror.seq, mirror.count, mirror.digest) == (
            *(replica.epoch, replica.seq, replica.blocks.count, replica.blocks.digest),
        ) and self.parts.router.blocks(replica.id) == sorted(replica.blocks.parents)

    async def synced(self, *replicas: FakeReplica, timeout_s: float = 8.0) -> None:
        """Return once the mirrors of all `replicas` equal their trees."""
        await until(lambda: all(self.equal(r) for r in replicas), timeout_s, "mirrors equal trees")

    async def serving(self, service: str = "") -> bool:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await self.health.Check(request)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def ready(self, timeout_s: float = 8.0) -> None:
        """Return once the health service says SERVING."""
        async with asyncio.timeout(timeout_s):
            async for answer in self.health.Watch(health_pb2.HealthCheckRequest()):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    async def metrics(self) -> str:
        def read() -> str:
            with urlopen(f"http://127.0.0.1:{self.running.metrics_port}/metrics") as page:
                return str(page.read().decode())

        return await asyncio.to_thread(read)


def request_of(tokens: Sequence[int] | None = None, **fields: Any) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(**fields)
    if tokens is not None:
        request.tokens.SetInParent()
        request.tokens.ids.extend(tokens)
    return request


def endless(number: int) -> inference_pb2.GenerateRequest:
    """Its answer takes longer than anybody waits, and its prompt is no other number's."""
    sampling = inference_pb2.SamplingParams(max_tokens=1500, ignore_eos=True)
    return request_of([3 + number % 200, 3 + number // 200, 5], sampling=sampling)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random token ids; another seed shares no prefix with it."""
    return random.Random(seed).choices(range(1000), k=length)


@asynccontextmanager
async def live_router(
    redis_url: str,
    *,
    listed: Sequence[str] = (),
    credentials: Credentials = IN_CLEAR,
    **settings: Any,
) -> AsyncIterator[LiveRouter]:
    """`listed`: addresses of all replicas, instead of their leases. `credentials`: the client's."""
    values = {
        "port": 0,
        "metrics_port": 0,
        "redis_url": redis_url,
        "cluster": "test",
        "drain_timeout_s": 1.0,
        "discovery": "static" if listed else "redis",
        "static_replicas": list(listed),
        **settings,
    }
    disable_created_metrics()  # type: ignore[no-untyped-call]  # as the process does
    async with running(RouterSettings(**values), derive_hash_key(b"")) as router:
        address = f"127.0.0.1:{router.port}"
        channel = (
            aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            if credentials is IN_CLEAR
            else credentials.aio_channel(address)
        )
        async with channel:
            yield LiveRouter(router, channel)


async def until(true: Callable[[], bool], timeout_s: float = 5.0, what: str = "") -> None:
    """Return as soon as `true()`; fail after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
