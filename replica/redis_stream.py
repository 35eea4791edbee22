"""A replica's delta stream in Redis, from the writing end."""

import logging

import redis

from proto import keys
from replica.delta_log import Batch
from replica.metrics import Metrics

log = logging.getLogger(__name__)


class RedisStream:
    """Appends batches; while Redis is away it says so once and refuses them."""

    def __init__(self, client: redis.Redis, metrics: Metrics, *, stream: str) -> None:
        self._client = client
        self._metrics = metrics
        self._stream = stream
        self._answers = True

    def send(self, batch: Batch) -> bool:
        """Whether Redis took it. If not it may have it all the same; its seq tells copies."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.xadd(
                    self._stream,
                    {keys.BATCH_FIELD: batch.payload},
                    maxlen=keys.STREAM_MAX_BATCHES,
                    approximate=True,
                )
                pipe.expire(self._stream, keys.STREAM_TTL_S)
                pipe.execute()
        except (redis.RedisError, OSError) as error:
            self._metrics.publish_failures.inc()
            if self._answers:
                log.warning("cannot publish, will retry: stream=%s error=%s", self._stream, error)
            self._answers = False
            return False
        self._metrics.published_batches.inc()
        if not self._answers:
            log.info("publishing again: stream=%s seq=%d", self._stream, batch.seq)
        self._answers = True
        return True
