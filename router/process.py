"""Every part of one router, built and wired: what serves between a start and an end."""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from grpc_health.v1.health import aio as health_aio
from redis.asyncio import Redis

from proto.errors import InvalidFile
from proto.health_answers import HealthAnswers
from proto.metrics_page import metrics_page
from proto.redis_client import open_redis
from proto.tracing import Tracing, find_tracing
from radix_rs import Plane, Router, key_check
from router.access import Access
from router.admin import Admin
from router.admission import Admission
from router.auditor import Auditor
from router.desk import Desk
from router.discovery import Discovery
from router.discovery.asked import Ask
from router.discovery.redis import LeaseDiscovery
from router.discovery.static import StaticDiscovery
from router.fleet import Fleet
from router.fleet_report import FleetReport
from router.health import PATHS, Readiness
from router.leases import Leases
from router.metrics import PREFIX, KubernetesCollector, LinkCollector, Metrics, PlaneCollector
from router.prompt import PromptReader
from router.redis_link import RedisLink
from router.reload import Read, Reload
from router.replica_channel import Dialer, ask_lease
from router.replica_metrics import ReplicaCollector
from router.server import Server
from router.settings import RouterSettings
from router.silence import SilenceWatch
from router.subscriber import Subscriber
from router.tokenizers import Tokenizers
from router.turned_away import tell_of_turned_away
from router.ui.api import Api
from router.ui.gate import gate_of
from router.ui.history import History
from router.ui.site import StatusSite

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What a router is made of."""

    router: Router
    discovery: Discovery
    subscriber: Subscriber
    fleet: Fleet
    plane: Plane
    admission: Admission
    readiness: Readiness
    silence: SilenceWatch
    leases: Leases
    history: History


@dataclass(frozen=True)
class Running:
    """A router that serves."""

    parts: Parts
    port: int
    metrics_port: int
    _server: Server

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; return when the running requests are done or `timeout_s` is over."""
        await self.parts.readiness.drain()
        await self._server.drain(self.parts.admission, timeout_s)


@asynccontextmanager
async def running(
    settings: RouterSettings, hash_key: bytes, read: Read | None = None
) -> AsyncIterator[Running]:
    """A router that serves until the end of the block.

    Raises Unavailable if a port is taken, InvalidFile if a file of certificates, tokens or settings
    is no good.

    `read`: reads its settings again, should they change.
    """
    metrics = Metrics(policy=settings.policy)
    tracing = find_tracing(settings.otlp_traces_endpoint)
    rng = random.Random()
    router = Router(
        hash_key=hash_key,
        rules=settings.rules,
        seed=rng.getrandbits(64),
        index_max_bytes=settings.index_max_bytes,
    )
    health = health_aio.HealthServicer()
    gate = gate_of(settings)
    site = StatusSite(gate)
    page = metrics_page(
        metrics.registry,
        settings.metrics_host,
        settings.metrics_port,
        HealthAnswers(health, PATHS),
        site,
    )
    with page as metrics_port:
        server = Server(
            router,
            host=settings.host,
            port=settings.port,
            shards=settings.shards,
            max_inflight=settings.max_inflight,
            queue_size=settings.queue_size,
            queue_timeout_s=settings.queue_timeout_s,
            max_connections=settings.max_connections,
            max_held_bytes=settings.max_held_bytes,
            retries=settings.retries,
            retry_budget=settings.retry_budget,
            write_stall_s=settings.write_stall_s,
            seed=rng.getrandbits(64),
            sampling=tracing.sampling if tracing else None,
        )
        dialer = Dialer(settings.replica_tls_server_name)
        try:
            reload = Reload(
                settings, read or (lambda: settings), router=router, server=server, metrics=metrics
            )
            asked = _asked(settings, partial(ask_lease, dialer=dialer), rng, metrics)
            access = Access(settings, plane=server.plane, dialer=dialer, metrics=metrics, gate=gate)
            watched = [*reload.watched(), *access.watched]
            traces = _traces(tracing, server, metrics)
        except InvalidFile:
            await server.stop()
            raise
        async with (
            traces,
            open_redis(settings.redis_url) as redis,
            asyncio.TaskGroup() as tasks,
        ):
            parts = _build(
                settings,
                hash_key,
                metrics,
                redis,
                tasks,
                router,
                server,
                health,
                site,
                dialer,
                rng,
                asked,
                reload,
            )
            await parts.readiness.begin()
            background = [
                tasks.create_task(parts.fleet.follow(parts.discovery.views()), name="discovery"),
                tasks.create_task(parts.subscriber.run(), name="subscriber"),
                tasks.create_task(parts.readiness.run(), name="readiness"),
                tasks.create_task(parts.silence.run(), name="silence"),
                tasks.create_task(parts.leases.run(), name="leases"),
                *([tasks.create_task(parts.history.run(), name="history")] if gate else []),
                tasks.create_task(tell_of_turned_away(server.plane), name="turned away"),
                *(tasks.create_task(each.follow(), name="files") for each in watched),
            ]
            try:
                await server.start()
                log.info(
                    "router listens address=%s metrics=%s",
                    f"{settings.host}:{server.port}",
                    f"{settings.metrics_host}:{metrics_port}",
                )
                with reload.on_hangup():
                    yield Running(parts, server.port, metrics_port, server)
            finally:
                await server.stop()
                for task in background:
                    task.cancel()
                await parts.fleet.close()


def _build(
    settings: RouterSettings,
    hash_key: bytes,
    metrics: Metrics,
    redis: Redis,
    tasks: asyncio.TaskGroup,
    router: Router,
    server: Server,
    health: health_aio.HealthServicer,
    site: StatusSite,
    dialer: Dialer,
    rng: random.Random,
    asked: Discovery | None,
    reload: Reload,
) -> Parts:
    """Every part, and who knows whom."""
    leases, deltas = RedisLink("leases"), RedisLink("deltas")
    subscriber = Subscriber(redis, cluster=settings.cluster, link=deltas, rng=rng)
    fleet = Fleet(
        router=router,
        plane=server.plane,
        dialer=dialer,
        key_check=key_check(hash_key),
        subscriber=subscriber,
        tokenizers=Tokenizers(set_text=server.plane.set_text, rng=rng),
        tasks=tasks,
        rng=rng,
    )
    discovery: Discovery
    links: Sequence[RedisLink]
    if asked:
        discovery, links = asked, (deltas,)
    else:
        discovery = LeaseDiscovery(
            redis, cluster=settings.cluster, link=leases, answers=fleet.answers, rng=rng
        )
        links = (leases, deltas)
    admission, prompts = Admission(server.plane), PromptReader(fleet, metrics)
    readiness = Readiness(health, fleet, timeout_s=settings.ready_timeout_s)
    metrics.watch(
        PlaneCollector(server.plane),
        ReplicaCollector(fleet, subscriber, router),
        LinkCollector(links),
    )
    leased = Leases(router, expired=metrics.expired_leases.inc)
    metrics.leased_picks.set_function(lambda: len(leased))
    report = FleetReport(fleet, subscriber, router, links=links)
    admin = Admin(
        router=router,
        fleet=fleet,
        report=report,
        prompts=prompts,
        admission=admission,
        auditor=Auditor(router, fleet, hash_key=hash_key, link=deltas),
        leases=leased,
    )
    server.add(Desk(server.plane, fleet=fleet, prompts=prompts), admin, health)
    history = History(report.statuses, server.plane, router)
    api = Api(
        router=router,
        plane=server.plane,
        fleet=fleet,
        report=report,
        admin=admin,
        history=history,
        policy=lambda: reload.policy,
    )
    site.open(
        reads={"fleet": api.fleet, "history": api.history, "tree": api.tree},
        posted={"explain": api.explain},
    )
    silence = SilenceWatch(fleet, link=deltas)
    return Parts(
        router=router,
        discovery=discovery,
        subscriber=subscriber,
        fleet=fleet,
        plane=server.plane,
        admission=admission,
        readiness=readiness,
        silence=silence,
        leases=leased,
        history=history,
    )


def _traces(
    tracing: Tracing | None, server: Server, metrics: Metrics
) -> AbstractAsyncContextManager[None]:
    """In which spans are sent, if requests are traced. Raises InvalidFile if they cannot be."""
    if tracing is None:
        return nullcontext()
    plane, instance = server.plane, f"{socket.gethostname()}:{server.port}"
    export = tracing.export(plane.take_traces, service="prefixlb-router", instance=instance)
    metrics.watch(export.collector(PREFIX, plane.dropped_traces))
    return export.running()


def _asked(
    settings: RouterSettings, ask: Ask, rng: random.Random, metrics: Metrics
) -> Discovery | None:
    """The discovery that asks replicas who they are, if one does.

    Raises InvalidFile where Kubernetes is to say where they are and cannot be asked.
    """
    if settings.discovery == "static":
        return StaticDiscovery(settings.static_replicas, ask=ask)
    if settings.discovery != "kubernetes":
        return None
    try:
        from router.discovery.kubernetes import open_kubernetes
    except ImportError as error:
        raise InvalidFile(
            f"--discovery kubernetes: {error}; pip install 'prefixlb[kubernetes]' brings it"
        ) from error
    service, port = settings.kubernetes_service, settings.kubernetes_port
    discovery = open_kubernetes(service, port, ask=ask, rng=rng)
    metrics.watch(KubernetesCollector(discovery.slices))
    return discovery
