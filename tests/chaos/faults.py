"""What is done to the field. Each function returns when its fault has ended."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from grpc import aio
from redis.asyncio import Redis

from proto.prefixlb.v1.replica_pb2 import FlushRequest
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from router.cli.child import Child
from tests.chaos.field import Field
from tests.chaos.load import Load
from tests.chaos.relay import Mangle


@dataclass(frozen=True)
class Scene:
    """What a fault works on."""

    field: Field
    load: Load
    rng: random.Random
    hold_s: Callable[[float], float]
    """How long to hold what is held for so many seconds in a full campaign."""

    async def hold(self, full_s: float) -> None:
        await asyncio.sleep(self.hold_s(full_s))

    def some_replica(self) -> Child:
        return self.rng.choice(self.field.replicas)

    def some_router(self) -> Child:
        return self.rng.choice(self.field.routers)


class Missed(Exception):
    """The fault is over and broke nothing: what follows proves nothing. Says what it missed."""


Fault = Callable[[Scene], Awaitable[None]]

UNREAD_S = 1.0
"""How long batches pile up for a router before they are taken away."""


async def redis_restarts(scene: Scene) -> None:
    scene.field.server.kill()
    await scene.field.start_server()


async def redis_is_flushed(scene: Scene) -> None:
    async with scene.field.client() as client:
        await client.flushall()


async def redis_streams_are_trimmed(scene: Scene) -> None:
    """While a router is frozen: one that reads would have read them."""
    field, router, unread = scene.field, scene.some_router(), 0
    async with field.client() as client:
        with scene.load.disturbing(router.name):
            with _frozen(router):
                read = {stream: await _last_id(client, stream) for stream in field.streams(router)}
                await asyncio.sleep(UNREAD_S)
                for stream, last_id in read.items():
                    unread += len(await client.xrange(stream, min=f"({last_id}"))
                for stream in (each for router in field.routers for each in field.streams(router)):
                    await client.xtrim(stream, maxlen=0, approximate=False)
            await field.serving(router)
    if unread <= 1:  # a read that waits has its answer with the first batch
        raise Missed(f"{router.name} had read the streams")


async def _last_id(client: Redis, stream: str) -> str:
    last = await client.xrevrange(stream, count=1)
    return str(last[0][0].decode()) if last else "0-0"


async def redis_is_full_and_refuses_writes(scene: Scene) -> None:
    await _fill(scene, "noeviction", _refused)


async def redis_is_full_and_evicts_our_keys(scene: Scene) -> None:
    await _fill(scene, "allkeys-lru", _evicted)


async def _fill(scene: Scene, policy: str, count: Callable[[Redis], Awaitable[int]]) -> None:
    async with scene.field.client() as client:
        before = await count(client)
        await client.config_set("maxmemory-policy", policy)
        await client.config_set("maxmemory", "1")  # less than the empty server takes
        await scene.hold(8.0)
        await client.config_set("maxmemory", "0")
        if await count(client) == before:
            raise Missed(f"Redis did nothing for want of memory under {policy}")


async def _refused(client: Redis) -> int:
    """Commands that Redis has refused because it is full."""
    errors = await client.info("errorstats")
    return int(errors.get("errorstat_OOM", {"count": 0})["count"])


async def _evicted(client: Redis) -> int:
    """Keys that Redis has given up because it is full."""
    return int((await client.info("stats"))["evicted_keys"])


async def redis_is_gone(scene: Scene) -> None:
    scene.field.server.kill()
    await scene.hold(60.0)
    await scene.field.start_server()


async def redis_cannot_be_reached(scene: Scene) -> None:
    scene.field.forwarder.point_at(None)
    await scene.hold(20.0)
    scene.field.lead_to_server()


async def redis_fails_over_to_a_copy(scene: Scene) -> None:
    await scene.field.fail_over()


async def replica_dies_and_restarts(scene: Scene) -> None:
    replica = scene.some_replica()
    with scene.load.disturbing(replica.name):
        replica.kill()
        replica.start()
        await scene.field.serving(replica)


async def replica_dies_and_stays_away(scene: Scene) -> None:
    replica = scene.some_replica()
    with scene.load.disturbing(replica.name):
        replica.kill()
        await scene.hold(12.0)
        replica.start()
        await scene.field.serving(replica)


async def replica_freezes(scene: Scene) -> None:
    replica = scene.some_replica()
    with scene.load.disturbing(replica.name), _frozen(replica):
        await scene.hold(20.0)


async def replica_is_flushed(scene: Scene) -> None:
    async with aio.insecure_channel(scene.some_replica().address) as channel:
        while True:
            try:
                flushed = await ReplicaStub(channel).Flush(FlushRequest())
                break
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                await asyncio.sleep(0.005)  # between two requests it is idle for a moment
    if not flushed.flushed_tokens:
        raise Missed("its tree was empty")


async def router_dies_and_restarts(scene: Scene) -> None:
    router = scene.some_router()
    with scene.load.disturbing(router.name):
        router.kill()
        router.start()
        await scene.field.serving(router)


async def router_freezes(scene: Scene) -> None:
    router = scene.some_router()
    with scene.load.disturbing(router.name):
        with _frozen(router):
            await scene.hold(20.0)
        await scene.field.serving(router)


async def deltas_are_dropped(scene: Scene) -> None:
    await _mangle(scene, Mangle(drop=0.3))


async def deltas_are_doubled(scene: Scene) -> None:
    await _mangle(scene, Mangle(double=0.5))


async def deltas_are_reordered(scene: Scene) -> None:
    await _mangle(scene, Mangle(late=0.3))


async def deltas_are_delayed(scene: Scene) -> None:
    await _mangle(scene, Mangle(delay_s=0.5))


async def _mangle(scene: Scene, mangle: Mangle) -> None:
    relay = scene.field.relay
    before = relay.touched
    relay.mangle = mangle
    await scene.hold(8.0)
    relay.mangle = Mangle()
    if relay.touched == before:
        raise Missed("every batch arrived once, in order and at once")


@contextmanager
def _frozen(child: Child) -> Iterator[None]:
    child.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        child.signal(signal.SIGCONT)


RESTARTS: tuple[Fault, ...] = (replica_dies_and_restarts, replica_dies_and_stays_away)

FAULTS: tuple[Fault, ...] = (
    redis_restarts,
    redis_is_flushed,
    redis_streams_are_trimmed,
    redis_is_full_and_refuses_writes,
    redis_is_full_and_evicts_our_keys,
    redis_is_gone,
    redis_cannot_be_reached,
    redis_fails_over_to_a_copy,
    replica_dies_and_restarts,
    replica_dies_and_stays_away,
    replica_freezes,
    replica_is_flushed,
    router_dies_and_restarts,
    router_freezes,
    deltas_are_dropped,
    deltas_are_doubled,
    deltas_are_reordered,
    deltas_are_delayed,
)
