"""A replica beside a Redis that is full, frozen, locked or nowhere: it serves and catches up."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from proto.redis_client import failure_reason
from tests.redis_process import redis_server
from tests.replica_rig import ReplicaRig
from tests.test_announcement import (
    NAME,
    assert_equals_tree,
    failures,
    mirror,
    redis_rig,
    traffic,
    until,
)

pytestmark = pytest.mark.redis

ON_FAILURE = ("cannot publish, will retry ", "cannot renew the lease, will retry ")


@pytest.fixture
def own_redis() -> Iterator[tuple[str, Any]]:
    """URL and client of a Redis that the test may spoil."""
    with redis_server() as url, redis.Redis.from_url(url) as client:
        yield url, client


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING]


async def assert_caught_up(rig: ReplicaRig, url: str) -> None:
    """A mirror that has a snapshot follows by the deltas now in Redis."""
    router = mirror()
    snapshot = await rig.snapshot()
    for part in snapshot:
        router.apply_snapshot(NAME, part.batch.SerializeToString(), part.last)
    seq = snapshot[-1].batch.seq
    await traffic(rig, 3, seed=99)
    now = (await rig.info()).lease.seq
    batches = await until(url, lambda batches: batches[-1].seq > now)
    later = [batch for batch in batches if batch.seq > seq]
    assert {router.apply(NAME, each.SerializeToString()).outcome for each in later} == {"applied"}
    await assert_equals_tree(router, rig)


async def test_a_full_redis_is_said_once_without_what_was_to_be_published(
    own_redis: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    url, client = own_redis
    async with redis_rig(url) as rig:
        await traffic(rig, 2, seed=1)
        client.config_set("maxmemory", "1")
        await traffic(rig, 5, seed=2)
        await failures(rig)
        said = complaints(caplog)
        assert len(said) == 2  # the lease's and the stream's
        assert all(line.startswith(ON_FAILURE) for line in said)
        for line in said:
            assert "command not allowed when used memory > 'maxmemory'" in line
            assert "batch" not in line and "xadd" not in line.lower() and "\\x" not in line
        client.config_set("maxmemory", "0")
        await assert_caught_up(rig, url)
        client.config_set("maxmemory", "1")
    assert client.keys() == []  # it has withdrawn all the same


async def test_a_frozen_redis_holds_up_neither_requests_nor_the_end(
    own_redis: tuple[str, Any],
) -> None:
    url, client = own_redis
    process_id = client.info("server")["process_id"]
    async with redis_rig(url) as rig:
        await traffic(rig, 2, seed=1)
        os.kill(process_id, signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                await traffic(rig, 5, seed=2)
                await failures(rig)
        finally:
            os.kill(process_id, signal.SIGCONT)
        await assert_caught_up(rig, url)
        os.kill(process_id, signal.SIGSTOP)
    os.kill(process_id, signal.SIGCONT)  # reached, so the replica has ended


async def test_a_user_who_may_not_publish_is_told_and_publishes_once_allowed(
    own_redis: tuple[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    url, client = own_redis
    client.acl_setuser("replica", enabled=True, passwords=["+hunter2"], keys=["*"])
    async with redis_rig(url.replace("redis://", "redis://replica:hunter2@")) as rig:
        await traffic(rig, 3, seed=1)
        await failures(rig)
        said = complaints(caplog)
        assert all("has no permissions to run the" in line for line in said)
        assert "hunter2" not in caplog.text
        client.acl_setuser("replica", enabled=True, commands=["+@all"], keys=["*"])
        await assert_caught_up(rig, url)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("redis://", "redis://:hunter2@"), "invalid username-password pair"),
        (("127.0.0.1", "no.such.host.invalid"), "connecting to no.such.host.invalid"),
    ],
)
async def test_a_redis_that_cannot_be_entered_costs_no_request(
    own_redis: tuple[str, Any],
    caplog: pytest.LogCaptureFixture,
    change: tuple[str, str],
    why: str,
) -> None:
    url, client = own_redis
    client.config_set("requirepass", "right")
    async with redis_rig(url.replace(*change)) as rig:
        await traffic(rig, 3, seed=1)
        await failures(rig)
        said = complaints(caplog)
        assert [line for line in said if why in line] == said
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Command # 1 (XADD deltas * batch \x08\x01 of pipeline) of pipeline caused error: OOM",
            "OOM",
        ),
        (
            "Command # 2 (SET lease \x12) of pipeline caused error: ('READONLY no.',)",
            "READONLY no.",
        ),
        (
            "unknown command 'XADD', with args beginning with: 'deltas' '*' 'batch' '\x08' ",
            "unknown command 'XADD",
        ),
        ("", "ResponseError"),
    ],
)
def test_the_reason_of_a_failure_quotes_no_argument(text: str, reason: str) -> None:
    assert failure_reason(ResponseError(text)) == reason
