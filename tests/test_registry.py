"""The lease and the stream in Redis: whose clock counts, what is bounded, what is left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import pytest
import redis
from redis.asyncio import Redis

from proto import keys
from proto.errors import Unavailable
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import open_redis
from replica.delta_log import Batch
from replica.redis_stream import RedisStream
from replica.registry import Registry
from tests.engine_rig import EngineRig

CLUSTER = "test"


class SlowRedis:
    """Its clock stands at 5000 s. A write takes until `answer`, and then a moment if cancelled."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def get(self, key: str) -> None:
        return None

    async def pttl(self, key: str) -> int:
        return -2

    async def time(self) -> tuple[int, int]:
        return 5000, 250_000

    def pipeline(self, *, transaction: bool) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def __getattr__(self, command: str) -> Any:
        return lambda *arguments, **options: self.calls.append((command, *arguments))

    async def execute(self) -> list[list[None]]:
        self.asked.set()
        try:
            await self.answer.wait()
            return [[None]]
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            self.calls.append(("cancelled",))
            raise


def registry_on(
    client: object, replica_id: str = "a", address: str = "10.0.0.1:1", epoch: int = 0
) -> Registry:
    return Registry(
        cast(Redis, client),
        EngineRig().metrics,
        cluster=CLUSTER,
        lease=lambda: Lease(replica_id=replica_id, address=address, epoch=epoch),
    )


async def test_members_are_scored_and_pruned_by_the_clock_of_redis() -> None:
    client = SlowRedis()
    client.answer.set()
    assert await registry_on(client).renew()
    members = keys.members(CLUSTER)
    assert ("zadd", members, {"a": 5000.25}) in client.calls
    oldest_s = 5000.25 - keys.LEASE_TTL_S
    assert ("zremrangebyscore", members, "-inf", oldest_s) in client.calls


async def test_the_lease_is_withdrawn_only_after_the_last_renewal_is_over() -> None:
    client = SlowRedis()
    async with registry_on(client).held():
        await client.asked.wait()
        client.answer = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, client.answer.set)  # for the withdrawal
    names = [call[0] for call in client.calls]
    assert names.index("cancelled") < names.index("delete")


@pytest.mark.redis
async def test_a_name_goes_with_its_lease_and_the_set_with_its_members(
    redis_url: str,
) -> None:
    async with open_redis(redis_url) as client:
        now_s, _ = await client.time()
        members = keys.members(CLUSTER)
        await client.zadd(members, {"lives": now_s - 2, "died": now_s - 4})
        assert await registry_on(client).renew()
        assert await client.zrange(members, 0, -1) == [b"lives", b"a"]
        assert 0 < await client.ttl(members) <= keys.LEASE_TTL_S


@pytest.mark.redis
async def test_an_id_that_another_replica_uses_is_not_taken(redis_url: str) -> None:
    async with open_redis(redis_url) as client, registry_on(client).held():
        await asyncio.sleep(0.1)  # it renews
        key = keys.lease(CLUSTER, "a")
        second = registry_on(client, address="10.0.0.2:1")
        with pytest.raises(Unavailable, match=r"'a' .* 10\.0\.0\.1:1 .* 10\.0\.0\.2:1"):
            async with second.held():
                pass
        assert Lease.FromString(await client.get(key)).address == "10.0.0.1:1"


@pytest.mark.redis
@pytest.mark.parametrize("address", ["10.0.0.2:1", "10.0.0.1:1"], ids=["elsewhere", "same address"])
async def test_two_that_renew_the_lease_of_one_id_say_so_once_and_when_it_is_over(
    redis_url: str, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    caplog.set_level("INFO", "replica.registry")

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [line for line in lines if "other" in line]

    first_address = "10.0.0.1:1"
    async with open_redis(redis_url) as client:
        first = registry_on(client, epoch=1)
        second = registry_on(client, address=address, epoch=2)  # started while Redis was away
        for each in (first, first, second):
            assert await each.renew()
        assert said() == []
        for each in (first, second, first, second):
            assert await each.renew()
        warnings = said()
        assert len(warnings) == 2
        assert "--replica-id" in warnings[0]
        assert f"address={first_address} other='{address}' other_epoch={2:016x}" in warnings[0]
        assert f"address={address} other='{first_address}' other_epoch={1:016x}" in warnings[1]
        for _ in range(round(keys.LEASE_TTL_S / keys.LEASE_PERIOD_S)):
            assert await first.renew()
        assert said() == []
        await second.withdraw()
        assert said() == [f"leaves the lease to the other replica address={first_address}"]
        assert await client.exists(keys.lease(CLUSTER, "a"))
        assert await first.renew()
        assert said() == [
            "no other replica renews the lease any more key=" + keys.lease(CLUSTER, "a")
        ]


@pytest.mark.redis
async def test_the_lease_of_a_life_at_another_address_is_taken_once_it_has_run_out(
    redis_url: str,
) -> None:
    async with open_redis(redis_url) as client:
        assert await registry_on(client).renew()
        key = keys.lease(CLUSTER, "a")
        await client.pexpire(key, 600)
        async with registry_on(client, address="10.0.0.2:1").held():
            await asyncio.sleep(0.1)
            assert Lease.FromString(await client.get(key)).address == "10.0.0.2:1"


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """URL of a Redis that takes connections and commands and never answers."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_redis_that_does_not_answer_is_away_before_the_lease_runs_out() -> None:
    async with silent_server() as url, open_redis(url) as client:
        async with asyncio.timeout(keys.LEASE_TTL_S):
            assert not await registry_on(client).renew()


@pytest.mark.redis
def test_a_stream_is_bounded_in_bytes_and_keeps_the_newest(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        stream = RedisStream(client, EngineRig().metrics, stream="deltas", max_bytes=1000)
        for seq, size in enumerate([100] * 30 + [5000] + [100] * 3, start=1):
            assert stream.send(Batch(1, seq, b"%04d" % seq + bytes(size - 4)))
            kept = [fields[keys.BATCH_FIELD] for _, fields in cast(Any, client.xrange("deltas"))]
            assert int(kept[-1][:4]) == seq
            assert sum(map(len, kept)) <= 1000 or len(kept) == 1
    assert [int(batch[:4]) for batch in kept] == [32, 33, 34]
