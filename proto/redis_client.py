"""How router and replica reach Redis: one server, over TLS or a socket file, or by Sentinel."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.connection
import redis.retry
import redis.sentinel
from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 2.0

REPLY_TIMEOUT_S = 5.0
"""A Redis that takes longer is away."""

SENTINEL_PORT = 26379

REDIS_URL_FORMS = (
    "redis://[user:password@]host[:port][/database], rediss:// for TLS, unix:///path, or "
    "redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]"
)
"""For messages and help."""


@dataclass(frozen=True)
class RedisAddress:
    """A parsed URL; `sentinels` is empty for a server addressed directly."""

    options: dict[str, Any]
    """Keyword arguments of a connection, as redis-py names them."""
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    """What the sentinels call the set of servers whose master is meant."""
    sentinel_options: dict[str, Any] | None = None


def parse_redis_url(url: str) -> RedisAddress:
    """Query parameters are redis-py's, such as ssl_ca_certs, ssl_certfile and ssl_keyfile.

    Sentinels with a login of their own: sentinel_username and sentinel_password. ValueError says
    what is expected and does not quote the URL, which may hold a password.
    """
    try:
        return _by_sentinel(url) if "+sentinel://" in url else RedisAddress(_parse(url))
    except ValueError:
        raise ValueError(f"expected {REDIS_URL_FORMS}") from None


def checked_redis_url(url: str) -> str:
    """`url` itself. Raises ValueError as `parse_redis_url`."""
    parse_redis_url(url)
    return url


def open_redis(url: str) -> "redis.asyncio.Redis":
    """For an event loop. Tries a command once: whoever uses it retries in its own time."""
    options: dict[str, Any] = {
        "socket_timeout": None,  # see reply_timeout
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": redis.asyncio.retry.Retry(NoBackoff(), 0),
    }
    address = parse_redis_url(url)
    if not address.sentinels:
        return redis.asyncio.Redis.from_url(url, **options)
    sentinel = _sentinel(redis.asyncio.sentinel.Sentinel, address, options)
    master: _Master = sentinel.master_for(address.service, redis_class=_Master)
    master.sentinels = sentinel.sentinels
    return master


def open_blocking_redis(url: str, *, timeout_s: float, retries: int) -> redis.Redis:
    """For a thread. `timeout_s`: of a connection and of a reply; `retries`: at once."""
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": redis.retry.Retry(NoBackoff(), retries),
    }
    address = parse_redis_url(url)
    if not address.sentinels:
        return redis.Redis.from_url(url, **options)
    sentinel = _sentinel(redis.sentinel.Sentinel, address, options)
    master: _BlockingMaster = sentinel.master_for(address.service, redis_class=_BlockingMaster)
    master.sentinels = sentinel.sentinels
    return master


def is_wrong_type(error: Exception) -> bool:
    """Whether a key is in the way that holds another type of value: somebody else's, by mistake."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error)


def reply_timeout(timeout_s: float = REPLY_TIMEOUT_S) -> asyncio.Timeout:
    """Around each command, in place of `socket_timeout`, which loses cancellations in Python 3.11.

    (redis-py waits with asyncio.wait_for there, which swallows one that comes with the reply.)
    """
    return asyncio.timeout(timeout_s)


class _Master(redis.asyncio.Redis):
    """Closes the connections to the sentinels with its own."""

    sentinels: Sequence[redis.asyncio.Redis] = ()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self.sentinels:
            await sentinel.aclose()


class _BlockingMaster(redis.Redis):
    """Likewise."""

    sentinels: Sequence[redis.Redis] = ()

    def close(self) -> None:
        super().close()
        for sentinel in self.sentinels:
            sentinel.close()


def _parse(url: str) -> dict[str, Any]:
    options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    return options


def _by_sentinel(url: str) -> RedisAddress:
    parts = urlsplit(url)
    scheme = parts.scheme.removesuffix("+sentinel")
    login, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.removeprefix("/").partition("/")
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    own = {
        name: query.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in query
    }
    # What is common to all connections is read by redis-py itself, from a URL of one server.
    options = _parse(f"{scheme}://{login}{at}server/{database}?{urlencode(query)}")
    del options["host"]
    if options.pop("connection_class", None) is not None:
        options["ssl"] = True
    sentinels = tuple(_host_port(each) for each in hosts.split(","))
    if not service:
        raise ValueError("no service")
    encrypted = {name: value for name, value in options.items() if name.startswith("ssl")}
    return RedisAddress(options, sentinels, service, {**encrypted, **own})


def _host_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, parts.port or SENTINEL_PORT


def _sentinel(kind: Callable[..., Any], address: RedisAddress, options: dict[str, Any]) -> Any:
    reached = {
        "socket_timeout": CONNECT_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        **(address.sentinel_options or {}),
    }
    return kind(address.sentinels, sentinel_kwargs=reached, **address.options, **options)


def failure_reason(error: Exception) -> str:
    """Why a command failed, without its arguments, which both redis-py and Redis like to quote."""
    text = str(error).rpartition(" of pipeline caused error: ")[2]
    return text.partition(", with args beginning with")[0].strip("(\"',)") or type(error).__name__
