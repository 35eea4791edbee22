"""What a replica tells Redis: that it lives, and what its tree does."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proto import keys
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import open_blocking_redis, open_redis
from replica.delta_log import DeltaLog
from replica.metrics import Metrics
from replica.publisher import Publisher
from replica.redis_stream import RedisStream
from replica.registry import Registry

TIMEOUT_S = 2.0
RETRIES = 1
"""At once: a connection that Redis closed, such as by a restart, is found out by using it."""


@asynccontextmanager
async def announced(
    redis_url: str,
    cluster: str,
    delta_log: DeltaLog,
    metrics: Metrics,
    lease: Callable[[], Lease],
) -> AsyncIterator[None]:
    """Lease and deltas are in Redis until the end of the block, whenever Redis is there."""
    # The publisher has a thread of its own, where nothing is cancelled.
    stream_client = open_blocking_redis(redis_url, timeout_s=TIMEOUT_S, retries=RETRIES)
    stream = RedisStream(stream_client, metrics, stream=keys.deltas(cluster, lease().replica_id))
    publisher = Publisher(delta_log, stream.send, metrics)
    with stream_client:
        async with open_redis(redis_url) as lease_client:
            registry = Registry(lease_client, metrics, cluster=cluster, lease=lease)
            async with registry.held(), publisher.running():
                yield


@asynccontextmanager
async def unannounced(delta_log: DeltaLog, metrics: Metrics) -> AsyncIterator[None]:
    """Deltas go nowhere: a replica that works alone."""
    async with Publisher(delta_log, lambda batch: True, metrics).running():
        yield
