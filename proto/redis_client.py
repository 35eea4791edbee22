"""How router and replica reach Redis from an event loop."""

import asyncio

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 2.0

REPLY_TIMEOUT_S = 5.0
"""A Redis that takes longer is away."""


def open_redis(url: str) -> Redis:
    """Tries a command once: whoever uses it retries in its own time."""
    return Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def reply_timeout(timeout_s: float = REPLY_TIMEOUT_S) -> asyncio.Timeout:
    """Around each command, in place of `socket_timeout`, which loses cancellations in Python 3.11.

    (redis-py waits with asyncio.wait_for there, which swallows one that comes with the reply.)
    """
    return asyncio.timeout(timeout_s)
