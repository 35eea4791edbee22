"""How router and replica reach Redis, and what they say of its errors."""

import asyncio

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 2.0

REPLY_TIMEOUT_S = 5.0
"""A Redis that takes longer is away."""


def check_redis_url(url: str) -> str:
    """The URL as it is. Raises ValueError, which does not quote it: it may hold a password."""
    try:
        parse_url(url)
    except ValueError:
        raise ValueError("expected redis://[user:password@]host[:port][/database]") from None
    return url


def failure_reason(error: Exception) -> str:
    """Why a command failed, without its arguments, which both redis-py and Redis like to quote."""
    text = str(error).rpartition(" of pipeline caused error: ")[2]
    return text.partition(", with args beginning with")[0].strip("(\"',)") or type(error).__name__


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
