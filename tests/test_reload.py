"""Settings that change while a router runs."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2

from proto.prefixlb.v1 import admin_pb2
from proto.settings import BadSettings
from radix_rs import derive_hash_key
from router.process import running
from router.server import OTHER_CALLS
from router.settings import parse_settings
from tests.fake_replica import FakeReplica, Script, replicas
from tests.http_page import ask
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until


def arguments(file: Path, *more: str) -> list[str]:
    return ["--port", "0", "--metrics-port", "0", "--settings-file", str(file), *more]


@asynccontextmanager
async def router_of(file: Path, redis_url: str) -> AsyncIterator[LiveRouter]:
    """A router that follows a file of settings."""
    given = arguments(file, "--redis-url", redis_url, "--cluster", "test")
    read = partial(parse_settings, given)
    async with running(read(), derive_hash_key(b""), read) as router:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(f"127.0.0.1:{router.port}", options=options) as channel:
            yield LiveRouter(router, channel)


def rewrite(file: Path, content: str) -> None:
    """... and tell the router, which is this process."""
    file.write_text(content)
    os.kill(os.getpid(), signal.SIGHUP)


def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "router.toml"
    file.write_text("max_inflight = 1\nqueue_size = 2\nretries = 3\n")
    monkeypatch.setenv("ROUTER_QUEUE_SIZE", "20")
    monkeypatch.setenv("ROUTER_RETRIES", "7")
    settings = parse_settings(arguments(file, "--retries", "9"))
    assert (settings.max_inflight, settings.queue_size, settings.retries) == (1, 20, 9)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("max_inflight = 0", "--max-inflight: Input should be greater"),
        ("max_inflght = 1", "--max-inflght: Extra inputs"),
        ("max_inflight =", "--settings-file: cannot read"),
        ("breaker_open_s = 40.0", "--breaker-max-open-s must not be less"),
    ],
)
def test_a_bad_file_is_refused_with_its_problem(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "router.toml"
    file.write_text(content)
    with pytest.raises(BadSettings, match=said):
        parse_settings(arguments(file))


@pytest.mark.redis
async def test_a_changed_file_changes_bounds_and_rules_of_a_running_router(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a swapped symlink, as Kubernetes does it."""
    caplog.set_level(logging.INFO)
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    first.write_text("max_inflight = 1\nqueue_size = 0\n")
    second.write_text('max_inflight = 2\nqueue_size = 0\npolicy = "random"\nshards = 7\n')
    file = tmp_path / "router.toml"
    file.symlink_to(first)
    async with router_of(file, redis_url) as router:
        plane = router.parts.plane
        assert plane.enter() and not plane.enter()
        swapped = tmp_path / "swapped"
        swapped.symlink_to(second)
        swapped.replace(file)
        async with asyncio.timeout(8.0):
            while not plane.enter():  # noqa: ASYNC110 - other tasks change it
                await asyncio.sleep(0.05)
        assert not plane.enter()
        said = [record.getMessage() for record in caplog.records if record.name == "router.reload"]
        assert "settings changed policy=cost->random max_inflight=1->2" in said
        assert "settings need a restart, the old stay names=shards" in said
        shown = (await ask(router.running.metrics_port, "/ui/api/fleet")).json
        assert shown["router"]["policy"] == "random"

        rewrite(second, "max_inflight = 3\nnonsense")
        await until(lambda: "settings not reloaded" in caplog.text)
        assert not plane.enter()
        rewrite(second, "max_inflight = 3\n")
        await until(lambda: "max_inflight=2->3" in caplog.text, 2.0)
        assert plane.enter()
        for _ in range(3):
            plane.leave()


@pytest.mark.redis
async def test_a_changed_policy_is_what_picks(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "router.toml"
    file.write_text('policy = "cost"\n')
    r0, r1, prompt = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url), prompt_of(40)
    async with replicas(r0, r1), router_of(file, redis_url) as router:
        await r1.store(prompt)
        await router.synced(r0, r1)
        answer = await router.generate(prompt)
        assert (answer.replica, answer.metadata["prefixlb-reason"]) == ("r1", "prefix")
        rewrite(file, 'policy = "round_robin"\n')
        await until(lambda: "policy=cost->round_robin" in caplog.text, 2.0)
        answers = [await router.generate(prompt) for _ in range(4)]
        assert {answer.metadata["prefixlb-reason"] for answer in answers} == {"policy"}
        assert sorted(str(answer.replica) for answer in answers) == ["r0", "r0", "r1", "r1"]


@pytest.mark.redis
async def test_a_larger_bound_holds_for_picks_and_all_other_calls_too(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "router.toml"
    file.write_text("max_inflight = 1\nqueue_size = 0\n")
    pick = admin_pb2.PickRequest(request=request_of([1, 2, 3]))
    async with router_of(file, redis_url) as router:
        request = health_pb2.HealthCheckRequest()
        watches = [router.health.Watch(request) for _ in range(1 + OTHER_CALLS)]
        for watch in watches:
            await watch.read()
        assert await router.admin.Pick(pick).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        rewrite(file, "max_inflight = 2\nqueue_size = 0\n")
        await until(lambda: "max_inflight=1->2" in caplog.text, 2.0)
        code = await router.admin.Pick(pick).code()
        assert code is grpc.StatusCode.UNAVAILABLE, "it was read, and there is no replica"
        for watch in watches:
            watch.cancel()


@pytest.mark.redis
async def test_who_waits_goes_on_when_there_is_more_room(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=60.0)
    async with (
        replicas(r0),
        live_router(redis_url, max_inflight=1, queue_size=4) as router,
    ):
        await router.synced(r0)
        calls = [router.inference.Generate(request_of([number])) for number in range(3)]
        await until(lambda: router.parts.plane.queued == 2)
        router.parts.plane.set_bounds(
            max_inflight=3,
            queue_size=4,
            queue_timeout_s=5.0,
            max_open_calls=9,
            retries=1,
            retry_budget=0.2,
        )
        await until(lambda: len(r0.served) == 3)
        for call in calls:
            call.cancel()
        for call in calls:
            assert await call.code() is grpc.StatusCode.CANCELLED
