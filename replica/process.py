"""Every part of one replica, built and wired: what serves between a start and an end."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from proto.health_answers import HealthAnswers
from proto.metrics_page import metrics_page
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.tracing import Tracing, find_tracing
from replica.announcement import announced, unannounced
from replica.cache import Cache
from replica.delta_log import DeltaLog
from replica.engine import Engine
from replica.engine_thread import EngineThread
from replica.inference_service import InferenceService
from replica.metrics import Metrics
from replica.models.load import LoadedModel
from replica.pool import Pool
from replica.py_tree.chain import HASH_VERSION, key_check
from replica.replica_service import ReplicaService
from replica.request_reader import RequestReader
from replica.schedule_policy import make_schedule_policy
from replica.scheduler import Scheduler
from replica.server import PATHS, Server
from replica.settings import ReplicaSettings
from replica.tls import ServerTls, followed, warn_of_exposure
from replica.traces import Traces
from replica.tree_core import make_tree

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Running:
    """A replica that serves."""

    port: int
    metrics_port: int
    metrics: Metrics
    _engine: EngineThread
    _inference: InferenceService
    _server: Server

    async def drain(self) -> None:
        """Take nothing new; return when what runs is done and its readers have it."""
        await self._server.drain()
        self._engine.drain()
        await self._inference.idle()

    async def failed(self) -> None:
        """Returns when it ended; raises what the engine died of, if it did."""
        await self._engine.ended()


@asynccontextmanager
async def running(
    settings: ReplicaSettings, loaded: LoadedModel, hash_key: bytes
) -> AsyncIterator[Running]:
    """A replica that serves until the end of the block.

    Raises Unavailable if a port is taken, InvalidFile if a certificate is no good.
    """
    model, codec = loaded.model, loaded.codec
    model_id = settings.model_id or model.config.model_id
    metrics = Metrics(CollectorRegistry(), model=model_id)
    delta_log = DeltaLog(
        block_size=settings.block_size, max_backlog_bytes=settings.max_backlog_bytes
    )
    engine = EngineThread(
        build_engine(settings, loaded, model_id, hash_key, delta_log, metrics),
        max_waiting=settings.max_waiting,
    )
    lease = Lease(
        model=model_id,
        page_size=settings.page_size,
        block_size=settings.block_size,
        hash_version=HASH_VERSION,
        tokenizer_digest=codec.digest(),
        key_check=key_check(hash_key),
    )

    def lease_now() -> Lease:
        lease.epoch, lease.seq = delta_log.position
        return lease

    reader = RequestReader(
        codec=codec,
        config=model.config,
        model_id=model_id,
        num_slots=settings.slots,
        seeds=random.Random(),
    )
    tracing = find_tracing(settings.otlp_traces_endpoint)
    traces = Traces(tracing.sampling, model=model_id, ids=random.Random()) if tracing else None
    inference = InferenceService(engine, reader, metrics, traces)
    tls = ServerTls(settings.tls_files, metrics) if settings.tls_cert else None
    warn_of_exposure(settings)
    server = Server(
        inference,
        ReplicaService(
            engine,
            codec,
            metrics,
            config=model.config,
            device=str(model.device),
            lease=lease_now,
        ),
        host=settings.host,
        port=settings.port,
        refused=metrics.count_refused,
        credentials=tls.credentials if tls else None,
        # Those that wait or run, and as many answers that are computed and not yet read: an answer
        # keeps no slot, and a reader that never reads keeps no more than its call's place.
        max_generate_calls=2 * (settings.max_waiting + settings.max_running),
    )
    lease.address = settings.advertise_address or f"{settings.host}:{server.port}"
    lease.replica_id = settings.replica_id or lease.address
    metrics.is_replica(lease.replica_id)
    exported = _exported(tracing, traces, lease.replica_id, metrics)
    page = metrics_page(
        metrics.registry,
        settings.metrics_host,
        settings.metrics_port,
        HealthAnswers(server.health, PATHS),
    )
    with page as metrics_port:
        async with exported:
            engine.start()
            try:
                await server.start()
                log.info(
                    "replica listens replica=%s address=%s metrics=%s model=%s device=%s slots=%d",
                    *(lease.replica_id, lease.address, f"{settings.metrics_host}:{metrics_port}"),
                    *(model_id, model.device, settings.slots),
                )
                announcement = (
                    announced(settings.redis_url, settings.cluster, delta_log, metrics, lease_now)
                    if settings.redis_url
                    else unannounced(delta_log, metrics)
                )
                async with announcement, followed(tls):
                    yield Running(server.port, metrics_port, metrics, engine, inference, server)
            finally:
                await server.stop()
                await engine.stop()


def _exported(
    tracing: Tracing | None, traces: Traces | None, replica_id: str, metrics: Metrics
) -> AbstractAsyncContextManager[None]:
    """In which spans are sent, if requests are traced. Raises InvalidFile if they cannot be."""
    if tracing is None or traces is None:
        return nullcontext()
    export = tracing.export(traces.take, service="prefixlb-replica", instance=replica_id)
    metrics.registry.register(export.collector("prefixlb_replica_", traces.dropped))
    return export.running()


def build_engine(
    settings: ReplicaSettings,
    loaded: LoadedModel,
    model_id: str,
    hash_key: bytes,
    delta_log: DeltaLog,
    metrics: Metrics,
) -> Engine:
    model, config = loaded.model, loaded.model.config
    tree = make_tree(
        settings.tree_core,
        page_size=settings.page_size,
        block_size=settings.block_size,
        hash_key=hash_key,
        model=model_id,
        policy=settings.eviction_policy,
        policy_options=settings.eviction_options,
        disabled=settings.disable_cache,
    )
    pool = Pool(
        num_slots=settings.slots,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    cache = Cache(tree, pool)
    scheduler = Scheduler(
        cache,
        make_schedule_policy(settings.schedule_policy, cache.parent),
        chunk_size=settings.chunk_size,
        page_size=settings.page_size,
        max_running=settings.max_running,
        wait_to_share=not settings.disable_cache,
    )
    return Engine(
        model=model,
        tree=tree,
        pool=pool,
        cache=cache,
        scheduler=scheduler,
        delta_log=delta_log,
        metrics=metrics,
    )
