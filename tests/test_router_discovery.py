"""Who is in the fleet: by leases, by a list of addresses, and who is refused."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import grpc
import pytest
from redis.asyncio import Redis

from proto import keys
from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.delta_pb2 import Lease
from proto.redis_client import open_redis
from router.discovery.redis import MAX_REPLICAS, LeaseDiscovery
from router.health_checks import GIVE_UP_S
from router.redis_link import RedisLink
from router.refusals import MAX_REFUSALS, SHOWN_S, TOLD_S, Refusals
from router.replica_state import Health
from tests.fake_replica import FakeReplica, Script, replicas
from tests.fakes import FakeClock
from tests.live_router import Answer, LiveRouter, live_router, prompt_of, until

pytestmark = pytest.mark.redis


class Looks:
    """One look after another at leases in a real Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.silent: set[str] = set()
        self.link = RedisLink("leases")
        self.discovery = LeaseDiscovery(
            redis,
            cluster="test",
            link=self.link,
            answers=lambda name: name not in self.silent,
            rng=random.Random(0),
        )

    async def lease(self, name: str, **fields: str) -> None:
        lease = Lease(**{"replica_id": name, "address": f"{name}:1", **fields})
        await self._redis.zadd(keys.members("test"), {name: 0})
        await self._redis.set(keys.lease("test", name), lease.SerializeToString())

    async def expire(self, name: str) -> None:
        await self._redis.delete(keys.lease("test", name))

    async def look(self) -> set[str]:
        return set(await self.discovery.look())


async def test_a_silent_replica_without_a_lease_two_looks_in_a_row_is_dead(
    redis_url: str,
) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("a")
        await looks.lease("b")
        assert await looks.look() == {"a", "b"}
        looks.silent.add("a")
        await looks.expire("a")
        assert await looks.look() == {"a", "b"}
        assert await looks.look() == {"b"}
        await looks.lease("a")
        assert await looks.look() == {"a", "b"}


@pytest.mark.parametrize("lost", ["everything", "the leases, which expired while it was away"])
async def test_a_redis_without_leases_drops_nobody_who_answers(redis_url: str, lost: str) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("a")
        await looks.lease("b")
        await looks.look()
        if lost == "everything":
            await redis.flushall()
        else:
            await looks.expire("a")
            await looks.expire("b")
        for _ in range(20):
            assert await looks.look() == {"a", "b"}


async def test_a_replica_without_a_lease_leaves_when_another_has_its_address(
    redis_url: str,
) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("old", address="10.0.0.1:1")
        await looks.look()
        await looks.expire("old")
        await looks.lease("new", address="10.0.0.1:1")
        assert await looks.look() == {"new"}


async def test_what_cannot_be_read_is_set_aside_once_and_the_others_are_used(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("good")
        await looks.lease("liar", replica_id="good")
        await redis.zadd(keys.members("test"), {"noise": 0, "wrong type": 0, b"\xff\xfe": 0})
        await redis.set(keys.lease("test", "noise"), b"\xff\xff")
        await redis.lpush(keys.lease("test", "wrong type"), "x")
        for _ in range(3):
            assert await looks.look() == {"good"}
        assert set(looks.link.set_aside) == {"noise", "liar", "\\xff\\xfe"}
        lines = [r.getMessage() for r in caplog.records]
        assert len(lines) == 3
        assert "set aside link=leases name='noise' why='2 bytes that are no Lease message'" in lines
        await looks.lease("liar")
        assert await looks.look() == {"good", "liar"}


@pytest.mark.parametrize(
    "address",
    [
        "unix:/run/prefixlb.sock",
        "unix:1234",
        "dns:///10.0.0.1:1",
        "10.0.0.1:1\x1b[2J",
        "10.0.0.1:1\nreplica joins",
        "10.0.0.1",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        ":1",
        "a b:1",
    ],
)
async def test_a_lease_with_an_address_that_is_no_host_and_port_is_never_used_nor_printed_raw(
    redis_url: str, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("good", address="[fe80::1]:30001")
        await looks.lease("evil", address=address)
        for _ in range(3):
            assert await looks.look() == {"good"}
    [line] = [r.getMessage() for r in caplog.records if "set aside" in r.getMessage()]
    assert "name='evil'" in line and "expected host:port" in line and line.isprintable()


async def test_a_lease_whose_model_does_not_print_is_never_used(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("evil", model="tiny\nreplica leaves replica=good")
        assert await looks.look() == set()
        assert "do not print" in looks.link.set_aside["evil"]


async def test_while_redis_is_away_no_view_comes_and_the_last_one_stands() -> None:
    async with open_redis("redis://127.0.0.1:1/0") as redis:
        looks = Looks(redis)
        views = looks.discovery.views()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(views)
        assert not looks.discovery._link.up


async def test_a_lease_without_a_model_is_refused_and_changes_nothing_for_others(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    evil = Lease(replica_id="evil", address="127.0.0.1:1").SerializeToString()
    async with open_redis(redis_url) as redis, replicas(r0), live_router(redis_url) as router:
        await redis.zadd(keys.members("test"), {"evil": 0})
        await redis.set(keys.lease("test", "evil"), evil)
        await until(lambda: router.parts.fleet.refusals.of("evil") is not None)
        assert router.parts.fleet.refusals.of("evil").reason == "lease"
        await redis.delete(keys.lease("test", "evil"))
        await until(lambda: router.parts.fleet.refusals.of("evil") is None)
        await router.synced(r0)
        assert (await router.generate(prompt_of(40))).replica == "r0"


async def test_a_static_list_needs_no_leases(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    await r0.start(leased=False)
    await r1.start(leased=False)
    addresses = [r0.address, r1.address, "127.0.0.1:1"]
    async with live_router(redis_url, listed=addresses) as router:
        await r1.store(prompt)
        await router.synced(r0, r1)
        answer = await router.generate(prompt)
        assert (answer.replica, answer.usage.cached_tokens) == ("r1", 39)

        await r1.kill()
        assert router.parts.router.mirror("r1").count > 0
        assert (await router.generate(prompt)).replica == "r0"
        assert set(router.parts.fleet.members) == {"r0", "r1"}  # the list is the list
        await until(lambda: router.parts.router.mirror("r1").count == 0, GIVE_UP_S + 3.0)
        await r1.restart()
        await until(lambda: router.member(r1).state.liveness.value == "live")
        await router.synced(r1)
        assert router.parts.router.mirror("r1").count == 0
    await r0.kill()
    await r1.kill()


async def test_an_address_that_is_taken_over_by_another_replica_is_that_replica(
    redis_url: str,
) -> None:
    old, new = FakeReplica("old", redis_url), FakeReplica("new", redis_url)
    await old.start(leased=False)
    async with live_router(redis_url, listed=[old.address]) as router:
        await router.synced(old)
        await old.kill()
        new.port = old.port
        await new.start(leased=False)
        await until(lambda: set(router.parts.fleet.members) == {"new"})
        await router.synced(new)
    await new.kill()


async def test_another_block_size_than_the_models_is_refused_loudly_and_used_once_it_fits(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url, block_size=4)
    odd = FakeReplica("odd", redis_url, block_size=8)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        async with replicas(odd):
            await until(lambda: router.parts.fleet.refusals.of("odd") is not None)
            assert set(router.parts.fleet.members) == {"r0"}
            (line,) = [r for r in caplog.records if "replica refused" in r.message]
            assert line.levelno == logging.ERROR
            assert "8" in line.getMessage() and "4" in line.getMessage()
            page = await router.metrics()
            refused = 'prefixlb_router_replica_refused{reason="block_size",replica="odd"} 1.0'
            assert refused in page
            statuses = await router.statuses()
            assert list(statuses) == ["odd", "r0"]
            assert statuses["odd"].refusal.startswith("block_size: ")
            assert not statuses["odd"].live and not statuses["r0"].refusal
            for number in range(4):
                assert (await router.generate([number])).replica == "r0"
            router.parts.fleet.update([odd.lease()])  # the others have left
            assert set(router.parts.fleet.members) == {"odd"}
            assert refused not in await router.metrics()


async def test_another_hash_version_is_refused(redis_url: str) -> None:
    odd = FakeReplica("odd", redis_url, hash_version=99)
    async with replicas(odd), live_router(redis_url) as router:
        await until(lambda: router.parts.fleet.refusals.of("odd") is not None)
        assert not router.parts.fleet.members
        assert 'reason="hash_version",replica="odd"} 1.0' in await router.metrics()
        assert (await router.generate([1])).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("listed", [False, True])
async def test_another_cluster_secret_is_refused_loudly_and_used_once_it_is_the_same(
    redis_url: str, caplog: pytest.LogCaptureFixture, listed: bool
) -> None:
    """Else no block of it would ever match, and nothing would say why."""
    odd = FakeReplica("odd", redis_url, secret=b"another")
    await odd.start(leased=not listed)
    async with live_router(redis_url, listed=[odd.address] if listed else []) as router:
        await until(lambda: router.parts.fleet.refusals.of("odd") is not None)
        assert not router.parts.fleet.members
        (line,) = [r for r in caplog.records if "replica refused" in r.message]
        assert "--hash-secret-file" in line.getMessage()
        refused = 'prefixlb_router_replica_refused{reason="hash_secret",replica="odd"} 1.0'
        assert refused in await router.metrics()
        await odd.kill()
        same = FakeReplica("odd", redis_url)
        same.port = odd.port
        await same.start(leased=not listed)
        await until(lambda: "odd" in router.parts.fleet.members)
        assert refused not in await router.metrics()
        await same.kill()


async def test_a_replica_that_moves_to_another_address_is_another_life(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)
    async with live_router(redis_url) as router:
        async with replicas(r0):
            await r0.store(prompt)
            await router.synced(r0)
            old = router.member(r0).state
        r0.port = 0
        r0.new_epoch()
        async with replicas(r0):
            await until(lambda: router.member(r0).state is not old)
            await router.synced(r0)
            assert router.member(r0).state.lease.address == r0.address
            assert router.parts.router.mirror("r0").count == 0
            assert (await router.generate(prompt)).code is grpc.StatusCode.OK


async def running_answer(router: LiveRouter, replica: FakeReplica) -> "asyncio.Task[Answer]":
    """An answer of this replica that has begun."""
    task = asyncio.create_task(router.generate([1, 2, 3]))
    await until(lambda: replica.running == 1 and not router.member(replica).state.unanswered)
    return task


async def leased_in_turn(redis: Redis, leases: list[Lease]) -> None:
    """Renew all leases of one id, one after the other, as processes that share it do."""
    while True:
        for lease in leases:
            await redis.zadd(keys.members("test"), {lease.replica_id: 0})
            await redis.set(
                keys.lease("test", lease.replica_id), lease.SerializeToString(), px=3000
            )
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("listed", [False, True])
async def test_of_two_replicas_with_one_id_the_first_stays_until_it_is_gone(
    redis_url: str, caplog: pytest.LogCaptureFixture, listed: bool
) -> None:
    caplog.set_level("INFO")
    first, second = FakeReplica("r0", redis_url), FakeReplica("r0", redis_url)
    async with AsyncExitStack() as stack:
        for replica in (first, second):
            await replica.start(leased=False)
            stack.push_async_callback(replica.kill)
        first.script = Script(tokens=20, gap_s=0.1)
        redis = await stack.enter_async_context(open_redis(redis_url))
        listed_at = [first.address, second.address] if listed else []
        router = await stack.enter_async_context(live_router(redis_url, listed=listed_at))
        fleet = router.parts.fleet
        renewals = asyncio.create_task(leased_in_turn(redis, [first.lease(), second.lease()]))
        await until(lambda: "r0" in fleet.members and fleet.refusals.of("r0") is not None)
        assert router.member(first).state.lease.address == first.address
        answer = await running_answer(router, first)
        assert (await answer).code is grpc.StatusCode.OK
        assert len(first.served) == 1 and not second.served
        assert "replica leaves" not in caplog.text

        (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert first.address in line and second.address in line
        refused = 'prefixlb_router_replica_refused{reason="id",replica="r0"} 1.0'
        assert refused in await router.metrics()
        both = (await router.admin.ListReplicas(admin_pb2.ListReplicasRequest())).replicas
        assert {each.lease.address: bool(each.refusal) for each in both} == {
            first.address: False,
            second.address: True,
        }

        await first.kill()
        await until(
            lambda: (
                router.member(first).state.lease.address == second.address
                if "r0" in fleet.members
                else False
            ),
            4.0,
            "the second one joins",
        )
        await router.synced(second)
        assert (await router.generate([1, 2, 3])).code is grpc.StatusCode.OK
        assert len(second.served) == 1
        renewals.cancel()


DAMAGE: dict[str, Callable[[Redis, str], Awaitable[object]]] = {
    "deleted": lambda redis, lease: redis.delete(lease),
    "all deleted": lambda redis, lease: redis.flushall(),
    "overwritten": lambda redis, lease: redis.set(lease, b"\xff\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_lease_that_is_gone_for_a_moment_cuts_no_answer(
    redis_url: str,
    damage: Callable[[Redis, str], Awaitable[object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though its health checks are late meanwhile: it sends tokens."""
    caplog.set_level("INFO")
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=30, gap_s=0.1)
    async with open_redis(redis_url) as redis, replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        answer = await running_answer(router, r0)
        r0.renewing.clear()
        await damage(redis, keys.lease("test", "r0"))
        router.member(r0).state.health = silent
        await until(lambda: router.member(r0).state.silent_checks >= 2, 4.0, "it is late")
        assert (await answer).code is grpc.StatusCode.OK
        assert "replica leaves" not in caplog.text
        r0.renewing.set()


async def silent() -> Health:
    return Health.SILENT


async def test_a_second_replica_at_one_address_is_refused(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        alias = r0.lease()
        alias.replica_id = "alias"
        router.parts.fleet.update([r0.lease(), alias])
        refusal = router.parts.fleet.refusals.of("alias")
        assert refusal is not None and refusal.reason == "address" and "r0" in refusal.detail
        router.parts.fleet.update([alias])
        assert set(router.parts.fleet.members) == {"alias"}


async def test_a_lease_that_alternates_with_garbage_is_told_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        for number in range(10):
            await looks.lease("a")
            assert await looks.look() == {"a"}
            await redis.set(keys.lease("test", "a"), b"\xff" * (number + 1))
            assert await looks.look() == {"a"}
            assert list(looks.link.set_aside) == ["a"]
        assert caplog.text.count("set aside") == 1


async def test_no_more_members_are_looked_at_than_a_fleet_can_have(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis(redis_url) as redis:
        looks = Looks(redis)
        await looks.lease("real")
        assert await looks.look() == {"real"}
        forged = Lease(address="127.0.0.1:1", model="m")
        async with redis.pipeline(transaction=False) as pipe:
            for number in range(10_000):
                forged.replica_id = f"forged-{number}"
                pipe.zadd(keys.members("test"), {forged.replica_id: 1e12 + number})
                pipe.set(keys.lease("test", forged.replica_id), forged.SerializeToString())
            pipe.zadd(keys.members("test"), {"x" * 5000: 2e12, "a\nb": 2e12, "": 2e12})
            await pipe.execute()
        for _ in range(3):
            view = await looks.look()
            assert "real" in view and len(view) <= MAX_REPLICAS
        assert set(looks.link.set_aside) == {keys.members("test"), "x" * 253, "a\nb", ""}
        assert len(caplog.records) == 4
        assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_flood_of_refusals_is_bounded_and_each_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    refusals = Refusals(clock=clock)
    for _ in range(3):
        for number in range(2 * MAX_REFUSALS):
            refusals.add(Lease(replica_id=f"r{number}"), "lease", "it names no address")
    assert len(list(refusals)) == len(caplog.records) == MAX_REFUSALS
    clock.advance(SHOWN_S)
    assert not list(refusals)
    clock.advance(TOLD_S)
    refusals.forget()
    refusals.add(Lease(replica_id="r0"), "lease", "it names no address")
    assert len(list(refusals)) == 1
    assert len(caplog.records) == MAX_REFUSALS + 1
