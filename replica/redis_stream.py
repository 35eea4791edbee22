"""A replica's delta stream in Redis, from the writing end."""

import logging
from collections import deque
from contextlib import suppress

import redis

from proto import keys
from proto.redis_client import failure_reason, is_wrong_type
from replica.delta_log import Batch
from replica.metrics import Metrics

log = logging.getLogger(__name__)


class RedisStream:
    """Appends batches; while Redis is away it says so once and refuses them."""

    def __init__(
        self,
        client: redis.Redis,
        metrics: Metrics,
        *,
        stream: str,
        max_bytes: int = keys.STREAM_MAX_BYTES,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._stream = stream
        self._max_bytes = max_bytes
        self._answers = True
        self._kept: deque[tuple[bytes, int]] = deque()
        # Id and size of the batches that Redis keeps.
        self._kept_bytes = 0

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
                pipe.expire(self._stream, keys.LEASE_TTL_S)
                identifier, _ = pipe.execute()
            self._bound(identifier, len(batch.payload))
        except (redis.RedisError, OSError) as error:
            self._metrics.publish_failures.inc()
            self._kept.clear()  # another Redis may answer next
            self._kept_bytes = 0
            if self._answers:
                log.warning(
                    "cannot publish, will retry stream=%s seq=%d size_bytes=%d why=%r",
                    *(self._stream, batch.seq, len(batch.payload), failure_reason(error)),
                )
            self._answers = False
            if is_wrong_type(error):
                self._make_way()
            return False
        self._metrics.published_batches.inc()
        self._metrics.last_published.set_to_current_time()
        if not self._answers:
            log.info("publishing again stream=%s seq=%d", self._stream, batch.seq)
        self._answers = True
        return True

    def _make_way(self) -> None:
        """The key is ours by its name; as it is nobody can use it, and it never expires."""
        with suppress(redis.RedisError, OSError):  # the next batch tries again
            self._client.unlink(self._stream)

    def _bound(self, identifier: bytes, size_bytes: int) -> None:
        """Bound the stream in bytes too: XADD counts batches, of which one may be large."""
        self._kept.append((identifier, size_bytes))
        self._kept_bytes += size_bytes
        while len(self._kept) > keys.STREAM_MAX_BATCHES:
            self._kept_bytes -= self._kept.popleft()[1]
        if self._kept_bytes <= self._max_bytes:
            return
        while self._kept_bytes > self._max_bytes and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popleft()[1]
        self._client.xtrim(self._stream, minid=self._kept[0][0], approximate=False)
