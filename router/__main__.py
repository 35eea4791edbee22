"""The router process: builds every part, serves, drains on SIGTERM, ends on a second one."""

import asyncio
import logging
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from redis.asyncio import Redis

from proto.prefixlb.v1 import admin_pb2, inference_pb2
from proto.prefixlb.v1.admin_pb2_grpc import add_AdminServicer_to_server
from proto.prefixlb.v1.inference_pb2_grpc import add_InferenceServicer_to_server
from proto.redis_client import open_redis
from proto.secret import read_hash_secret
from radix_rs import Router, derive_hash_key, key_check
from router.admin import Admin
from router.admission import Admission
from router.auditor import Auditor
from router.discovery import Discovery
from router.discovery.redis import LeaseDiscovery
from router.discovery.static import StaticDiscovery
from router.fleet import Fleet
from router.front import Front
from router.health import Readiness
from router.keepalive import KEEPALIVE, PERMIT_KEEPALIVE
from router.metrics import Metrics
from router.metrics_page import metrics_page
from router.prompt import PromptReader
from router.redis_link import RedisLink
from router.replica_state import ask_lease
from router.settings import RouterSettings, read_settings
from router.subscriber import Subscriber
from router.tokenizers import Tokenizers

log = logging.getLogger("router")

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
    health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    reflection.SERVICE_NAME,
)

OTHER_CALLS = 128
"""Calls besides those in flight: health checks and watches, and those that are being refused."""

QUIET_S = 0.25
"""Nothing in flight for this long after the port was closed: no accepted call is on its way."""

LAST_MESSAGES_S = 0.5
"""How long answers that are complete have to leave the process."""


class CannotListen(Exception):
    """A port is taken or an address is not this machine's."""


@dataclass(frozen=True)
class Parts:
    """What a router is made of."""

    router: Router
    discovery: Discovery
    subscriber: Subscriber
    fleet: Fleet
    admission: Admission
    readiness: Readiness


@dataclass(frozen=True)
class Running:
    """A router that serves."""

    parts: Parts
    port: int
    metrics_port: int
    _server: aio.Server

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; return when the running requests are done or `timeout_s` is over."""
        await self.parts.readiness.drain()
        stopping = asyncio.create_task(self._server.stop(timeout_s))
        # Quiet, not only idle: a call that was accepted may not have come to its handler yet.
        quiet = asyncio.create_task(self.parts.admission.quiet(QUIET_S))
        await asyncio.wait({stopping, quiet}, return_when=asyncio.FIRST_COMPLETED)
        quiet.cancel()
        # What is left are last messages on their way, and watchers of the health service.
        await self._server.stop(LAST_MESSAGES_S)
        await stopping


@asynccontextmanager
async def running(settings: RouterSettings, hash_key: bytes) -> AsyncIterator[Running]:
    """A router that serves until the end of the block. Raises CannotListen."""
    metrics = Metrics(policy=settings.policy)
    server = _server(settings.max_message_bytes, settings.max_inflight + OTHER_CALLS)
    port = _listen(server, settings.host, settings.port)
    with ExitStack() as stack:
        metrics_port = _serve_metrics(stack, metrics, settings)
        async with open_redis(settings.redis_url) as redis, asyncio.TaskGroup() as tasks:
            parts = _build(settings, hash_key, metrics, redis, tasks, server)
            await parts.readiness.begin()
            background = [
                tasks.create_task(parts.fleet.follow(parts.discovery.views()), name="discovery"),
                tasks.create_task(parts.subscriber.run(), name="subscriber"),
                tasks.create_task(parts.readiness.run(), name="readiness"),
            ]
            try:
                await server.start()
                log.info(
                    "router listens address=%s:%d metrics=%s:%d",
                    *(settings.host, port, settings.metrics_host, metrics_port),
                )
                yield Running(parts, port, metrics_port, server)
            finally:
                await server.stop(0)
                for task in background:
                    task.cancel()
                await parts.fleet.close()


def _build(
    settings: RouterSettings,
    hash_key: bytes,
    metrics: Metrics,
    redis: Redis,
    tasks: asyncio.TaskGroup,
    server: aio.Server,
) -> Parts:
    """Every part, and who knows whom."""
    rng = random.Random()
    router = Router(
        hash_key=hash_key,
        policy=settings.policy,
        k=settings.uncached_weight,
        decode_weight=settings.decode_weight,
        seed=rng.getrandbits(64),
    )
    leases, deltas = RedisLink("leases"), RedisLink("deltas")
    subscriber = Subscriber(redis, cluster=settings.cluster, link=deltas, rng=rng)
    fleet = Fleet(
        router=router,
        key_check=key_check(hash_key),
        subscriber=subscriber,
        tokenizers=Tokenizers(rng=rng),
        tasks=tasks,
        max_message_bytes=settings.max_message_bytes,
        rng=rng,
    )
    discovery: Discovery
    links: Sequence[RedisLink]
    if settings.discovery == "static":
        discovery, links = StaticDiscovery(settings.static_replicas, ask=ask_lease), (deltas,)
    else:
        discovery = LeaseDiscovery(
            redis, cluster=settings.cluster, link=leases, answers=fleet.answers, rng=rng
        )
        links = (leases, deltas)
    admission, prompts = Admission(settings.max_inflight), PromptReader(fleet, metrics)
    front = Front(
        router=router,
        fleet=fleet,
        metrics=metrics,
        retries=settings.retries,
        prompts=prompts,
        admission=admission,
        rng=rng,
    )
    health = health_aio.HealthServicer()
    readiness = Readiness(health, fleet, timeout_s=settings.ready_timeout_s)
    metrics.watch(fleet, subscriber, router, links)
    add_InferenceServicer_to_server(front, server)
    admin = Admin(
        router=router,
        fleet=fleet,
        prompts=prompts,
        admission=admission,
        auditor=Auditor(router, fleet, hash_key=hash_key),
    )
    add_AdminServicer_to_server(admin, server)
    add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(SERVICES, server)
    return Parts(router, discovery, subscriber, fleet, admission, readiness)


def _server(max_message_bytes: int, max_calls: int) -> aio.Server:
    return aio.server(
        maximum_concurrent_rpcs=max_calls,
        options=[
            ("grpc.so_reuseport", 0),  # a second router on the port is a mistake, not a helper
            *KEEPALIVE,
            *PERMIT_KEEPALIVE,
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
        ],
    )


def _listen(server: aio.Server, host: str, port: int) -> int:
    """The port that was bound."""
    try:
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error}") from error


def _serve_metrics(stack: ExitStack, metrics: Metrics, settings: RouterSettings) -> int:
    """The page's port; the page ends with `stack`."""
    host, port = settings.metrics_host, settings.metrics_port
    try:
        return stack.enter_context(metrics_page(metrics.registry, host, port))
    except OSError as error:
        raise CannotListen(f"cannot serve metrics on {host}:{port}: {error}") from error


async def serve(settings: RouterSettings, hash_key: bytes) -> None:
    """Serve until a signal, then drain; a second signal ends the draining."""
    stop, end = asyncio.Event(), asyncio.Event()

    def on_signal(name: str) -> None:
        log.info("signal signal=%s", name)
        (end if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    async with running(settings, hash_key) as router:
        await stop.wait()
        drained = asyncio.create_task(router.drain(settings.drain_timeout_s))
        ended = asyncio.create_task(end.wait())
        await asyncio.wait({drained, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, ended):
            task.cancel()
        log.info("router ends in_flight=%d", router.parts.admission.inflight)


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 after a signal, 1 if a port is taken, 2 for a bad setting."""
    settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        hash_key = derive_hash_key(read_hash_secret(settings.hash_secret_file))
    except ValueError as error:
        print(f"prefixlb router: --hash-secret-file: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings, hash_key))
    except CannotListen as error:
        print(f"prefixlb router: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
