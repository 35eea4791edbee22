"""What an operator is told when a mirror may not equal its tree: by page, log and gRPC."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
import redis

from proto import keys
from proto.prefixlb.v1.delta_pb2 import DeltaBatch
from router.replica_state import Liveness
from tests.fake_replica import NOT_SERVING, FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, until
from tests.redis_process import redis_server
from tests.replica_process import ReplicaProcess
from tests.test_router_metrics import samples
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.redis

OF_R0 = "{model=tiny,replica=r0}"


async def nowhere(batch: bytes) -> None: ...


async def alarms(router: LiveRouter) -> dict[str, float]:
    """Those of r0 that are counted."""
    page = await samples(router)
    names = ("gaps", "mismatches", "refused_batches", "new_epochs", "snapshots")
    return {name: page[f"{name}_total{OF_R0}"] for name in names}


async def test_a_gap_and_its_resync_are_counted(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        before = await alarms(router)
        r0.send = nowhere
        await r0.store(prompt_of(40))
        r0.send = r0.xadd
        await r0.publish()
        await router.synced(r0)
        changed = {"gaps": before["gaps"] + 1, "snapshots": before["snapshots"] + 1}
        assert await alarms(router) == {**before, **changed}


async def test_a_digest_that_contradicts_the_mirror_is_counted(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        before = await alarms(router)

        async def lying(batch: bytes) -> None:
            message = DeltaBatch.FromString(batch)
            message.digest ^= 1
            await r0.xadd(message.SerializeToString())

        r0.send = lying
        await r0.publish()
        r0.send = r0.xadd
        await until(lambda: router.member(r0).mirror.totals.mismatches > 0)
        await router.synced(r0)
        changed = {"mismatches": before["mismatches"] + 1, "snapshots": before["snapshots"] + 1}
        assert await alarms(router) == {**before, **changed}


@pytest.mark.parametrize("field", ["block_size", "hash_version"])
async def test_batches_of_another_kind_are_refused_loudly_and_nothing_is_believed(
    redis_url: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)

        async def odd(batch: bytes) -> None:
            message = DeltaBatch.FromString(batch)
            setattr(message, field, 99)
            await r0.xadd(message.SerializeToString())

        r0.send = odd
        await r0.publish()
        await until(lambda: router.parts.router.mirror("r0").count == 0)
        assert (await alarms(router))["refused_batches"] >= 1
        (line,) = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert "batch refused replica=r0" in line.getMessage() and "99" in line.getMessage()
        r0.send = r0.xadd
        await r0.publish()
        await router.synced(r0)


def silences(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "sends no deltas" in r.message]


async def test_silence_is_told_once_and_shown_until_it_ends(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        watch, state = router.parts.silence, router.member(r0).state
        r0.send = nowhere
        await asyncio.sleep(0.1)
        watch.look()  # takes note of what has come
        state.silent_s = keys.SILENT_S - 2  # so long already
        assert not silences(caplog)
        await until(lambda: state.silent_s >= keys.SILENT_S, 4.0, "two looks")
        watch.look()
        assert len(silences(caplog)) == 1 and "replica=r0" in silences(caplog)[0]
        page, statuses = await samples(router), await router.statuses()
        assert page[f"replica_silent{OF_R0}"] == 1
        assert page["replica_silent{model=tiny,replica=r1}"] == 0
        assert statuses["r0"].silent_s >= keys.SILENT_S > statuses["r1"].silent_s
        assert statuses["r0"].live, "it still serves"
        assert 0 <= statuses["r1"].delta_lag_s < 1
        r0.send = r0.xadd
        await r0.publish()
        await until(lambda: state.silent_s == 0.0, 4.0, "heard again")
        assert "replica sends deltas again replica=r0" in caplog.text
        assert (await samples(router))[f"replica_silent{OF_R0}"] == 0


async def test_silence_counts_only_while_redis_answers_and_the_replica_lives(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        watch, state = router.parts.silence, router.member(r0).state
        r0.send = nowhere
        await asyncio.sleep(0.05)
        watch.look()
        watch.look()
        assert state.silent_s > 0
        watch._link.up = False
        watch.look()
        assert state.silent_s == 0
        watch._link.up = True
        watch.look()
        assert state.silent_s > 0
        await r0.health.set("", NOT_SERVING)
        await until(lambda: state.liveness is Liveness.SUSPECT)
        watch.look()
        assert state.silent_s == 0


@pytest.mark.slow
async def test_a_replica_that_may_not_publish_is_told_within_15_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Real processes: it serves and keeps its lease, and Redis takes no delta of it."""
    write_tiny_model(tmp_path / "tiny")
    with redis_server() as url, redis.Redis.from_url(url) as client:
        client.acl_setuser(
            "mute", enabled=True, passwords=["+pw"], keys="*", commands=["+@all", "-xadd"]
        )
        replica = ReplicaProcess(
            *(tmp_path / "tiny", "--replica-id", "r0", "--cluster", "test"),
            *("--redis-url", url.replace("://", "://mute:pw@")),
        )
        try:
            async with live_router(url) as router:
                await until(lambda: "r0" in router.parts.fleet.members, 60.0, "it joins")
                joined_s = time.monotonic()
                assert (await router.generate([5, 6, 7])).messages
                await until(lambda: bool(silences(caplog)), 15.0, "the alarm")
                assert time.monotonic() - joined_s < 15
                assert (await samples(router))[f"replica_silent{OF_R0}"] == 1
                assert (await router.statuses())["r0"].live
        finally:
            replica.process.terminate()
            replica.finish()
        assert any("cannot publish" in line for line in replica.lines)
