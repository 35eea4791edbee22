"""A replica without a model: real gRPC, a real stream in Redis, a tree of blocks, scripted answers.

`python -m tests.fake_replica --id r0 --redis-url ...` runs one as a process that can be killed.
"""

import argparse
import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from redis.exceptions import RedisError

from proto import keys
from proto.limits import SERVER_LIMITS
from proto.prefixlb.v1 import inference_pb2, replica_pb2
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Lease, Load
from proto.prefixlb.v1.inference_pb2_grpc import (
    InferenceServicer,
    add_InferenceServicer_to_server,
)
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaServicer, add_ReplicaServicer_to_server
from proto.redis_client import open_redis
from proto.text import TextCodec
from proto.token_ids import ids_of
from radix_rs import HASH_VERSION, key_check
from tests.twins import Blocks, chain_hashes, hash_key

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Script:
    """How requests are answered."""

    tokens: int = 3
    first_after_s: float = 0.0
    gap_s: float = 0.0
    text: str = "{} "
    """Of a token, by its number."""
    refuse: grpc.StatusCode | None = None
    """Answer with this status, before any message."""
    fail_after: int | None = None
    """Answer UNAVAILABLE after this many messages."""
    store: bool = True
    metadata: tuple[tuple[str, str], ...] = ()
    """Initial metadata of the answer."""
    trailers: tuple[tuple[str, str], ...] = ()
    """Trailing metadata of the answer."""


@dataclass
class Served:
    """One request as the replica saw it."""

    request: inference_pb2.GenerateRequest
    metadata: dict[str, str | bytes]
    time_remaining_s: float | None
    peer: str
    """Address of the connection."""
    complete: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it ends without being complete."""


class FakeReplica(InferenceServicer, ReplicaServicer):
    """One life after another of a replica with a stable id; see `start`, `kill` and `restart`."""

    def __init__(
        self,
        replica_id: str,
        redis_url: str,
        *,
        model: str = "tiny",
        cluster: str = "test",
        block_size: int = 4,
        hash_version: int = HASH_VERSION,
        secret: bytes = b"",
        codec: TextCodec | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.id, self.model, self.cluster, self.block_size = replica_id, model, cluster, block_size
        self.hash_version = hash_version
        self.codec = codec
        self.credentials = credentials
        self.announced_digest = codec.digest() if codec else b""
        self.script = Script()
        self.served: list[Served] = []
        self.running = 0
        self.load = Load()
        self.context_length = 0
        """As Info says it."""
        self.blocks = Blocks()
        self.epoch = random.getrandbits(64) | 1
        self.seq = 0
        self.expected: list[DeltaEvent] = []
        """What a snapshot says of prompts announced."""
        self.snapshots = 0
        self.snapshot_pause_s = 0.0
        self.tokenizers_sent = 0
        self.snapshot_fails = 0
        """How many snapshots break off before one succeeds."""
        self.send: Callable[[bytes], Awaitable[None]] = self.xadd
        """Where batches go; a test may lose, double or reorder them."""
        self.renewing = asyncio.Event()
        """Cleared by a test for as long as no renewal of the lease shall succeed."""
        self.renewing.set()
        self.port = 0
        self._in_order = asyncio.Lock()
        self._key = hash_key(secret)
        self._redis_url = redis_url
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def chain(
        self, tokens: Sequence[int], *, extra_key: str = "", cache_salt: str = ""
    ) -> list[int]:
        return chain_hashes(
            tokens,
            hash_key=self._key,
            model=self.model,
            block_size=self.block_size,
            extra_key=extra_key,
            cache_salt=cache_salt,
        )

    # One life

    async def start(self, *, leased: bool = True) -> None:
        """Listen (on the port of the life before, if any), publish and renew the lease."""
        self._redis = open_redis(self._redis_url)
        self._server = aio.server(options=[("grpc.so_reuseport", 0), *SERVER_LIMITS])
        self.health = health_aio.HealthServicer()
        add_InferenceServicer_to_server(self, self._server)
        add_ReplicaServicer_to_server(self, self._server)
        add_HealthServicer_to_server(self.health, self._server)
        self.port = (
            self._server.add_secure_port(self.address, self.credentials)
            if self.credentials
            else self._server.add_insecure_port(self.address)
        )
        await self._server.start()
        self._tasks = [asyncio.create_task(self._heartbeat())]
        if leased:
            await self._renew()
            self._tasks.append(asyncio.create_task(self._keep_renewing()))

    async def kill(self) -> None:
        """Vanish without a goodbye: connections break, heartbeats and renewals stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop(None)
        await self._redis.aclose()

    async def restart(self) -> None:
        """A new life with an empty tree at the same address."""
        self.new_epoch()
        await self.start()

    def new_epoch(self) -> None:
        self.blocks = Blocks()
        self.epoch = random.getrandbits(64) | 1
        self.seq = 0

    # What the tree does

    async def store(self, tokens: Sequence[int], **namespace: str) -> None:
        await self.publish(self.blocks.store(self.chain(tokens, **namespace)))

    async def flush(self) -> None:
        self.new_epoch()
        await self.publish([])

    async def publish(self, events: Iterable[DeltaEvent] = ()) -> None:
        self.seq += 1
        batch = self._batch(events).SerializeToString()
        async with self._in_order:
            await self.send(batch)

    def _batch(self, events: Iterable[DeltaEvent], *, proof: bool = True) -> DeltaBatch:
        return DeltaBatch(
            epoch=self.epoch,
            seq=self.seq,
            block_size=self.block_size,
            hash_version=self.hash_version,
            events=events,
            load=self.load,
            count=self.blocks.count if proof else 0,
            digest=self.blocks.digest if proof else 0,
        )

    async def xadd(self, batch: bytes) -> None:
        stream = keys.deltas(self.cluster, self.id)
        await self._redis.xadd(stream, {keys.BATCH_FIELD: batch})
        await self._redis.expire(stream, keys.LEASE_TTL_S)

    async def _heartbeat(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                await self.publish()
            await asyncio.sleep(keys.LEASE_PERIOD_S)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(keys.LEASE_PERIOD_S)
            await self.renewing.wait()
            with suppress(RedisError, OSError):
                await self._renew()

    async def _renew(self) -> None:
        async with self._redis.pipeline() as pipe:
            pipe.zadd(keys.members(self.cluster), {self.id: 0})
            pipe.set(
                keys.lease(self.cluster, self.id),
                self.lease().SerializeToString(),
                px=int(keys.LEASE_TTL_S * 1000),
            )
            await pipe.execute()

    def lease(self) -> Lease:
        return Lease(
            replica_id=self.id,
            address=self.address,
            model=self.model,
            page_size=1,
            block_size=self.block_size,
            hash_version=self.hash_version,
            epoch=self.epoch,
            seq=self.seq,
            tokenizer_digest=self.announced_digest,
            key_check=key_check(self._key),
        )

    # What it serves

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        script = self.script
        metadata = dict(context.invocation_metadata() or ())
        served = Served(request, metadata, context.time_remaining(), context.peer())
        self.served.append(served)
        self.running += 1
        try:
            if script.refuse is not None:
                await context.abort(script.refuse, f"{self.id} says {script.refuse.name}")
            await asyncio.sleep(script.first_after_s)
            await context.send_initial_metadata(script.metadata)
            context.set_trailing_metadata(script.trailers)
            ids = ids_of(request.tokens).tolist()
            namespace = {"extra_key": request.extra_key, "cache_salt": request.cache_salt}
            chain = self.chain(ids, **namespace) if script.store else []
            known = [block for block in chain if block in self.blocks.parents]
            cached = min(len(known) * self.block_size, max(0, len(ids) - 1))
            if script.store:
                await self.store(ids, **namespace)
            for number in range(script.tokens):
                if number == script.fail_after:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.id} fails")
                yield inference_pb2.GenerateResponse(
                    token_ids=[number], text=script.text.format(number)
                )
                await asyncio.sleep(script.gap_s)
            yield inference_pb2.GenerateResponse(
                finish_reason=inference_pb2.FINISH_REASON_LENGTH,
                usage=inference_pb2.Usage(
                    prompt_tokens=len(ids), cached_tokens=cached, completion_tokens=script.tokens
                ),
            )
            served.complete = True
        finally:
            self.running -= 1
            if not served.complete:
                served.cancelled.set()

    async def Info(
        self, request: replica_pb2.InfoRequest, context: aio.ServicerContext
    ) -> replica_pb2.InfoResponse:
        return replica_pb2.InfoResponse(
            lease=self.lease(), load=self.load, context_length=self.context_length
        )

    async def Snapshot(
        self, request: replica_pb2.SnapshotRequest, context: aio.ServicerContext
    ) -> AsyncIterator[replica_pb2.SnapshotResponse]:
        self.snapshots += 1
        # The tree as of now: later batches must not show in later chunks.
        events = list(self.blocks.snapshot())
        first, last = self._batch(events[: len(events) // 2], proof=False), self._batch([])
        last.events.extend([*events[len(events) // 2 :], *self.expected])
        await asyncio.sleep(self.snapshot_pause_s)
        yield replica_pb2.SnapshotResponse(batch=first)
        if self.snapshot_fails:
            self.snapshot_fails -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "the snapshot broke off")
        await asyncio.sleep(self.snapshot_pause_s)
        yield replica_pb2.SnapshotResponse(batch=last, last=True)

    async def Flush(
        self, request: replica_pb2.FlushRequest, context: aio.ServicerContext
    ) -> replica_pb2.FlushResponse:
        await self.flush()
        return replica_pb2.FlushResponse(epoch=self.epoch)

    async def Tokenizer(
        self, request: replica_pb2.TokenizerRequest, context: aio.ServicerContext
    ) -> AsyncIterator[replica_pb2.TokenizerResponse]:
        if self.codec is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no tokenizer here")
        else:
            self.tokenizers_sent += 1
            data = self.codec.tokenizer_json
            for start in range(0, len(data), 1000):
                yield replica_pb2.TokenizerResponse(tokenizer_json=data[start : start + 1000])
            yield replica_pb2.TokenizerResponse(rules=self.codec.rules)


@asynccontextmanager
async def replicas(*started: FakeReplica) -> AsyncIterator[None]:
    """Start them, and kill them at the end."""
    for replica in started:
        await replica.start()
    try:
        yield
    finally:
        for replica in started:
            await replica.kill()


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first-after-s", type=float, default=0.0)
    parser.add_argument("--gap-s", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=3)
    options = parser.parse_args()
    replica = FakeReplica(options.id, options.redis_url)
    replica.port = options.port
    replica.script = Script(
        tokens=options.tokens, first_after_s=options.first_after_s, gap_s=options.gap_s
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with replicas(replica):
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_main())
