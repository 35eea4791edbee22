"""Every way to reach Redis that a URL can say: with a login, over TLS, by Sentinel."""

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlsplit

import pytest
import redis
import trustme
from prometheus_client import CollectorRegistry

from proto import keys
from proto.errors import Unavailable
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import open_blocking_redis, open_redis, parse_redis_url
from replica.delta_log import Batch
from replica.metrics import Metrics
from replica.redis_stream import RedisStream
from replica.registry import Registry
from router.cli.redis_server import free_ports
from tests.fake_replica import FakeReplica, replicas
from tests.live_router import live_router, prompt_of
from tests.redis_process import redis_server

PASSWORD = "p@ss/word"
DOCUMENTED = (Path(__file__).parents[1] / "deploy" / "README.md").read_text()
[ACL] = re.findall(r"`(~prefixlb:[^`]+)`", DOCUMENTED)
"""What prefixlb needs of Redis."""


@pytest.mark.parametrize(
    "url",
    [
        "http://host/0",
        "redis+sentinel://host",
        "redis+sentinel:///service",
        "redis+sentinel://host:port/service",
        "http+sentinel://host/service",
    ],
)
def test_a_url_of_another_form_is_refused_with_the_forms_there_are(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected redis://.*redis\+sentinel://") as refused:
        parse_redis_url(url)
    assert url not in str(refused.value)


def test_a_sentinel_url_has_login_database_and_every_sentinel() -> None:
    address = parse_redis_url(
        f"rediss+sentinel://u:{quote(PASSWORD, safe='')}@a,b:7,[::1]:9/main/3"
        "?ssl_ca_certs=/ca&sentinel_password=own"
    )
    assert address.sentinels == (("a", 26379), ("b", 7), ("::1", 9))
    assert address.service == "main"
    assert address.options == {
        **{"username": "u", "password": PASSWORD, "db": 3},
        **{"ssl": True, "ssl_ca_certs": "/ca"},
    }
    assert address.sentinel_options == {"ssl": True, "ssl_ca_certs": "/ca", "password": "own"}


@pytest.fixture
def users_redis() -> Iterator[tuple[str, redis.Redis]]:
    """A server that only a user with exactly the documented rights may use, and its operator."""
    with redis_server() as url, redis.Redis.from_url(url) as operator:
        operator.execute_command("ACL", "SETUSER", "lb", "on", f">{PASSWORD}", *ACL.split())
        operator.execute_command("CONFIG", "SET", "requirepass", "operators")
        port = urlsplit(url).port
        operator.execute_command("AUTH", "default", "operators")
        yield f"redis://lb:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/1", operator


@pytest.mark.redis
async def test_the_documented_rights_are_enough_for_router_and_replica(
    users_redis: tuple[str, redis.Redis],
) -> None:
    url, _ = users_redis
    await follows(url)
    await registers(url)
    assert publishes(url)


@pytest.mark.redis
async def test_a_wrong_password_is_told_without_it_and_heals(
    users_redis: tuple[str, redis.Redis], caplog: pytest.LogCaptureFixture
) -> None:
    url, operator = users_redis
    operator.execute_command("ACL", "SETUSER", "lb", f"<{PASSWORD}", ">another")
    caplog.set_level(logging.INFO)
    r0 = FakeReplica("r0", url)
    async with live_router(url) as router:
        await asyncio.sleep(1.0)
        told = [each.getMessage() for each in caplog.records if "redis is away" in each.message]
        assert len(told) == 1 and "invalid username-password pair" in told[0]
        assert PASSWORD not in caplog.text and quote(PASSWORD, safe="") not in caplog.text
        operator.execute_command("ACL", "SETUSER", "lb", f">{PASSWORD}")
        async with replicas(r0):
            await router.synced(r0)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.redis
@pytest.mark.parametrize("mutual", [False, True])
async def test_over_tls_with_or_without_a_client_certificate(
    redis_url: str, authority: trustme.CA, tmp_path: Path, mutual: bool
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    query = f"ssl_ca_certs={tmp_path}/ca.pem"
    if mutual:
        client = authority.issue_cert("client")
        client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
        client.private_key_pem.write_to_path(tmp_path / "client.key")
        query += f"&ssl_certfile={tmp_path}/client.pem&ssl_keyfile={tmp_path}/client.key"
    async with tls_before(redis_url, authority, mutual=mutual) as port:
        url = f"rediss://127.0.0.1:{port}/0?{query}"
        await follows(url)
        await registers(url)
        assert await asyncio.to_thread(publishes, url)
        stranger = f"rediss://127.0.0.1:{port}/0"
        assert not await asyncio.to_thread(publishes, stranger)


@pytest.mark.redis
@pytest.mark.slow
async def test_by_sentinel_writer_and_reader_follow_the_master_to_another_server() -> None:
    with servers_under_sentinel() as (url, sentinel):
        r0 = FakeReplica("r0", url)
        async with replicas(r0), live_router(url) as router:
            await r0.store(prompt_of(40))
            await router.synced(r0)
            first = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
            with open_blocking_redis(url, timeout_s=2.0, retries=1) as client:
                assert send(client)
                await fail_over(sentinel, first)
                assert await asyncio.to_thread(eventually, lambda: send(client))
            await registers(url)
            await r0.store(prompt_of(80, seed=1))
            await router.synced(r0, timeout_s=15.0)
            assert len(router.parts.router.blocks("r0")) == 30


async def follows(url: str) -> None:
    """A router finds a replica, mirrors it and goes on with its stream, all by `url`."""
    r0 = FakeReplica("r0", url)
    async with replicas(r0), live_router(url) as router:
        for seed in range(2):
            await r0.store(prompt_of(40, seed))
            await router.synced(r0)


async def registers(url: str) -> None:
    """A replica makes way for its lease, holds it, is told from another of its id, and leaves."""
    metrics = Metrics(CollectorRegistry(), model="tiny")
    members = keys.members("registry")
    async with open_redis(url) as client:

        def registry_at(address: str) -> Registry:
            lease = Lease(replica_id="r0", address=address, epoch=1)
            return Registry(client, metrics, cluster="registry", lease=lambda: lease)

        first = registry_at("10.0.0.1:1")
        await client.set(members, "no set")
        assert not await first.renew()
        assert await first.renew()
        async with first.held():
            with pytest.raises(Unavailable, match="is in use"):
                async with registry_at("10.0.0.2:1").held():
                    pass
            assert await client.zrevrange(members, 0, -1) == [b"r0"]
        assert await client.zrevrange(members, 0, -1) == []
        assert await client.get(keys.lease("registry", "r0")) is None
    assert metrics.total("lease_failures") == 1


def publishes(url: str) -> bool:
    """Whether the replica's own writer can send by `url`."""
    with open_blocking_redis(url, timeout_s=2.0, retries=1) as client:
        return send(client)


def send(client: redis.Redis) -> bool:
    """Whether both of two batches are taken, and the first then trimmed."""
    metrics = Metrics(CollectorRegistry(), model="tiny")
    name = keys.deltas("test", "writer")
    stream = RedisStream(client, metrics, stream=name, max_bytes=len(b"batch"))
    sent = all(stream.send(Batch(1, seq, b"batch")) for seq in (1, 2))
    return sent and len(cast(list[object], client.xrevrange(name))) == 1


@asynccontextmanager
async def tls_before(url: str, authority: trustme.CA, *, mutual: bool) -> AsyncIterator[int]:
    """TLS in front of the server at `url`; yields its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if mutual:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        async with asyncio.TaskGroup() as pipes:
            pipes.create_task(pipe(reader, inner_writer))
            pipes.create_task(pipe(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextmanager
def servers_under_sentinel() -> Iterator[tuple[str, redis.Redis]]:
    """A master, a copy of it and a sentinel; yields the URL by sentinel, and the sentinel."""
    master, copy, sentinel = free_ports(3)
    conf = (
        f"sentinel monitor main 127.0.0.1 {master} 1\n"
        "sentinel down-after-milliseconds main 1000\n"
        "sentinel failover-timeout main 3000\n"
    )
    with (
        redis_server(master),
        redis_server(copy, flags=("--replicaof", "127.0.0.1", str(master))),
        redis_server(sentinel, conf=conf, flags=("--sentinel",)),
        redis.Redis(port=sentinel) as client,
    ):
        known = lambda: len(client.execute_command("SENTINEL", "REPLICAS", "main")) == 1  # noqa: E731
        assert eventually(known)
        yield f"redis+sentinel://127.0.0.1:{sentinel}/main/0", client


async def fail_over(sentinel: redis.Redis, before: list[bytes]) -> None:
    """Make the copy the master; returns once the sentinel says so."""

    def moved() -> bool:
        with suppress(redis.ResponseError):  # not yet, or already under way
            sentinel.execute_command("SENTINEL", "FAILOVER", "main")
        return bool(
            sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main") != before
        )

    assert await asyncio.to_thread(eventually, moved)


def eventually(true: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether `true()` within `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True
