"""Lines of the log: text for people, JSON for what collects them."""

import asyncio
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from proto.logs import PAIR, JsonLines
from proto.prefixlb.v1.admin_pb2 import ListReplicasRequest
from proto.prefixlb.v1.admin_pb2_grpc import AdminStub
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from router.cli.child import Child
from router.cli.cluster import LocalCluster
from tests.fake_replica import FakeReplica, Script
from tests.live_router import request_of
from tests.tiny_model import write_tiny_model

SOURCES = [
    path
    for folder in ("proto", "router", "replica")
    for path in Path(__file__).parents[1].joinpath(folder).rglob("*.py")
]


def line(template: str, *arguments: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("router", logging.INFO, "x.py", 1, template, arguments, None)
    vars(record).update(more)
    text = JsonLines().format(record)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_pairs_become_fields_of_their_own_with_their_values() -> None:
    said = line(
        "replica joins replica=%s tokens=%d why=%r epoch=%016x silent_s=%.0f",
        *("r\n0", 7, "it's\tback", 255, 3.7),
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", said.pop("time"))
    assert said == {
        "level": "INFO",
        "logger": "router",
        "event": "replica joins",
        "replica": "r\n0",
        "tokens": 7,
        "why": "it's\tback",
        "epoch": "00000000000000ff",
        "silent_s": 4.0,
    }


@pytest.mark.parametrize(
    ("template", "arguments", "event"),
    [
        ("all is well", (), "all is well"),
        ("100 % of it", (), "100 % of it"),
        ("settings changed %s", ("a: 1 -> 2",), "settings changed a: 1 -> 2"),
        ("two of %d are here name=%s", (3, "x"), "two of 3 are here name=x"),
        ("by name=%(name)s", ({"name": "x"},), "by name=x"),
    ],
)
def test_what_is_not_made_of_pairs_stays_one_sentence(
    template: str, arguments: tuple[object, ...], event: str
) -> None:
    assert line(template, *arguments)["event"] == event


def test_a_traceback_is_a_field_of_one_line() -> None:
    try:
        raise RuntimeError("on purpose")
    except RuntimeError:
        said = line("it broke name=%s", "x", exc_info=sys.exc_info())
    assert "RuntimeError: on purpose" in said["exception"]
    assert said["event"] == "it broke" and said["name"] == "x"


def test_no_pair_of_a_message_has_the_name_of_a_field_of_every_line() -> None:
    names = {pair[1] for path in SOURCES for pair in PAIR.finditer(path.read_text())}
    assert "replica" in names
    assert not names & {"time", "level", "logger", "event", "exception"}


def test_every_pair_has_one_value_and_a_space_behind_it() -> None:
    """Or the whole message would be one sentence."""
    for path in SOURCES:
        assert not re.search(r" \w+=%\w\S*%", path.read_text()), path


@pytest.mark.redis
async def test_lines_of_real_processes_are_json_and_tell_of_a_request_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router when it has to send it elsewhere, the replica when it has answered it."""
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    prompt, flags = list(range(3, 203)), ("--log-format", "json", "--log-level", "DEBUG")
    write_tiny_model(tmp_path / "tiny")
    with LocalCluster(
        model=tmp_path / "tiny",
        state_dir=tmp_path,
        replicas=1,
        replica_flags=("--slots", "2000", *flags),
        router_flags=flags,
    ) as cluster:
        (replica,), router = cluster.replicas, cluster.router
        refusing = FakeReplica(
            "refusing",
            cluster.redis_url,
            cluster="local",
            block_size=16,
            secret=cluster.secret_file.read_bytes(),
        )
        refusing.script = Script(refuse=grpc.StatusCode.UNAVAILABLE)
        await refusing.start()
        try:
            await refusing.store(prompt)
            async with aio.insecure_channel(router.address) as channel, asyncio.timeout(20.0):
                mirrored = 0
                while mirrored != refusing.blocks.count:
                    await asyncio.sleep(0.05)
                    listed = await AdminStub(channel).ListReplicas(ListReplicasRequest())
                    mirrored = {each.lease.replica_id: each.count for each in listed.replicas}.get(
                        refusing.id, 0
                    )
                call = InferenceStub(channel).Generate(request_of(prompt))
                assert [message async for message in call]
                request_id = dict(await call.initial_metadata())["prefixlb-request-id"]
        finally:
            await refusing.kill()
    assert refusing.served
    told = {
        child: [json.loads(each) for each in child.log.read_text().splitlines()]
        for child in (router, replica)
    }
    assert all({"time", "level", "logger", "event"} <= each.keys() for each in told[router])

    def of_request(child: Child) -> list[str]:
        return [each["event"] for each in told[child] if each.get("request") == request_id]

    assert (of_request(router), of_request(replica)) == (["retry"], ["answered"])
    (listens,) = [each for each in told[replica] if each["event"] == "replica listens"]
    assert (listens["address"], listens["slots"]) == (replica.address, 2000)
