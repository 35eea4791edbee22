"""Clients of other makers: grpcurl, a program with grpc-go, h2load; and h2spec, bad on purpose.

All but h2load are built from tests/go_clients, whose go.sum names every byte that is fetched.
"""

import asyncio
import base64
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proto.credentials import IN_CLEAR
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, GenerateResponse
from tests.authority import Authority, tls_settings
from tests.bench.h2load import HTTP2
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until

SOURCES = Path(__file__).parent / "go_clients"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec"
GENERATE = "prefixlb.v1.Inference/Generate"
TOKEN = "token-of-this-caller"

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Clients:
    """Three programs."""

    directory: Path

    async def grpcurl(self, *arguments: str | Path, asks: str = "") -> tuple[int, str]:
        """Its exit code, and what it printed. `asks`: the message, in JSON."""
        code, out, errors = await _run(self.directory / "grpcurl", arguments, asks.encode())
        return code, out.decode() + errors

    async def grpc_go(
        self, router: LiveRouter, request: GenerateRequest, *flags: str | Path
    ) -> list["Called"]:
        """What came of each call of `Generate`, in the order they ended."""
        target = (f"-target={_address(router)}", f"-method=/{GENERATE}")
        code, out, errors = await _run(
            self.directory / "go_clients", (*target, *flags), request.SerializeToString()
        )
        assert code == 0, errors
        return [Called(json.loads(line)) for line in out.splitlines()]

    async def h2spec(self, router: LiveRouter, *flags: str) -> str:
        """What it says of all its cases, those that only the strictest pass among them."""
        port = str(router.running.port)
        where = ("--host", "127.0.0.1", "--port", port, "--path", f"/{GENERATE}")
        code, out, errors = await _run(self.directory / "h2spec", ("--strict", *where, *flags), b"")
        failures = out.decode().partition("Failures:")[2]
        assert code == 0, failures + errors
        return out.decode()


async def _run(
    program: Path, arguments: Sequence[str | Path], given: bytes
) -> tuple[int, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, out, errors.decode()


def _address(router: LiveRouter) -> str:
    return f"127.0.0.1:{router.running.port}"


class Called:
    """One call as grpc-go saw it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.code: str = told["code"]
        self.details: str = told["details"]
        self.header: dict[str, list[str]] = told["header"] or {}
        self.messages = [
            GenerateResponse.FromString(base64.b64decode(each)) for each in told["messages"] or ()
        ]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("no Go on this machine")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *command], cwd=SOURCES, env=environment, capture_output=True, text=True
        )

    fetched = run("mod", "download")
    if fetched.returncode:
        pytest.skip(f"Go does not get the clients' sources: {fetched.stderr.strip()[-300:]}")
    directory = tmp_path_factory.mktemp("clients")
    built = run("build", "-buildvcs=false", "-o", f"{directory}/", ".", GRPCURL, H2SPEC)
    assert built.returncode == 0, built.stderr
    return Clients(directory)


async def test_grpcurl_finds_out_what_there_is_and_calls_it(
    clients: Clients, redis_url: str
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.ready()
        where = ("-plaintext", _address(router))
        code, said = await clients.grpcurl(*where, "list")
        assert code == 0, said
        assert {"prefixlb.v1.Inference", "prefixlb.v1.Admin", "grpc.health.v1.Health"} <= {
            *said.split()
        }
        code, said = await clients.grpcurl(*where, "describe", "prefixlb.v1.Inference")
        assert code == 0 and "returns ( stream .prefixlb.v1.GenerateResponse )" in said, said

        asks = '{"tokens": {"ids": [1, 2, 3, 4, 5]}}'
        code, said = await clients.grpcurl("-v", "-d", "@", *where, GENERATE, asks=asks)
        assert code == 0, said
        assert "prefixlb-replica: r0" in said and '"prompt_tokens": 5' in said
        assert said.count("Response contents:") == 4
        code, said = await clients.grpcurl(*where, "prefixlb.v1.Admin/ListReplicas")
        assert (code, json.loads(said)["replicas"][0]["lease"]["replica_id"]) == (0, "r0")
        code, said = await clients.grpcurl(*where, "grpc.health.v1.Health/Check")
        assert (code, json.loads(said)) == (0, {"status": "SERVING"})
        code, said = await clients.grpcurl(
            "-format-error", "-d", '{"tokens": {}}', *where, GENERATE
        )
        assert code == 64 + 3 and '"code": 3' in said and "the prompt is empty" in said, said


async def test_grpcurl_comes_over_tls_with_a_certificate_and_a_token(
    clients: Clients, redis_url: str, authority: Authority, tmp_path: Path
) -> None:
    r0 = FakeReplica("r0", redis_url)
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    caller = authority.issue("caller", "caller")
    settings = {
        **tls_settings(authority.issue("router"), authority.ca),
        "auth_token_file": tmp_path / "tokens",
    }
    async with replicas(r0), live_router(redis_url, **settings) as router:
        await router.synced(r0)
        shown = ("-cacert", authority.ca, "-cert", caller.cert, "-key", caller.key)
        asks = ("-d", '{"tokens": {"ids": [1]}}', _address(router), GENERATE)
        code, said = await clients.grpcurl(*shown, "-H", f"authorization: Bearer {TOKEN}", *asks)
        assert code == 0 and '"prompt_tokens": 1' in said, said
        code, said = await clients.grpcurl(*shown, "-format-error", *asks)
        assert code == 64 + 16, said
        code, said = await clients.grpcurl("-cacert", authority.ca, "-max-time", "2", *asks)
        assert code != 0 and len(r0.served) == 1, said


async def test_grpc_go_reads_many_answers_at_once_each_as_it_was_sent(
    clients: Clients, redis_url: str, authority: Authority
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=40, text="{}" + "ü" * 5_000, store=False)
    settings = tls_settings(authority.issue("router"))
    mine = authority.credentials()
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        prompt = prompt_of(50_000)
        flags = ("-calls=64", "-gzip", f"-ca={authority.ca}")
        called = await clients.grpc_go(router, request_of(prompt), *flags)
        assert [each.code for each in called] == ["OK"] * 64
        expected = [f"{number}" + "ü" * 5_000 for number in range(40)]
        for each in called:
            assert [message.text for message in each.messages[:-1]] == expected
            assert each.messages[-1].usage.prompt_tokens == len(prompt)
            assert each.header["prefixlb-replica"] == ["r0"]
        assert all(list(served.request.tokens.ids) == prompt for served in r0.served)


async def test_what_grpc_go_leaves_or_waits_for_no_longer_ends_at_the_replica_too(
    clients: Clients, redis_url: str
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=10_000, gap_s=0.01, store=False)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for flag, code in (("-leave-after=3", "Canceled"), ("-timeout=1s", "DeadlineExceeded")):
            called = await clients.grpc_go(router, request_of([1, 2]), "-calls=8", flag)
            assert [each.code for each in called] == [code] * 8
            assert all(each.messages for each in called)
            await until(lambda: r0.running == 0, what="no answer goes on")
            assert router.parts.router.in_flight("r0") == 0
        (refused,) = await clients.grpc_go(router, request_of([]))
        assert refused.code == "InvalidArgument" and "the prompt is empty" in refused.details


@pytest.mark.parametrize("flags", [(), ("--tls", "--insecure")], ids=["h2c", "tls"])
async def test_h2spec_finds_nothing_that_http_2_forbids_and_others_are_served_on(
    clients: Clients, redis_url: str, authority: Authority, flags: tuple[str, ...]
) -> None:
    r0 = FakeReplica("r0", redis_url)
    settings = tls_settings(authority.issue("router")) if flags else {}
    mine = authority.credentials() if flags else IN_CLEAR
    async with replicas(r0), live_router(redis_url, credentials=mine, **settings) as router:
        await router.synced(r0)
        assert (await router.generate([1, 2, 3])).replica == "r0"
        said = await clients.h2spec(router, *flags)
        assert "146 tests, 146 passed, 0 skipped, 0 failed" in said, said[-200:]
        assert (await router.generate([1, 2, 3])).replica == "r0"
        plane = router.running.parts.plane
        await until(lambda: plane.connections == 1, what="of h2spec's connections none is left")


async def test_h2load_has_every_call_of_many_connections_and_streams_answered(
    redis_url: str, tmp_path: Path
) -> None:
    h2load = shutil.which("h2load")
    if h2load is None:
        pytest.skip("no h2load in PATH. Debian, Ubuntu: apt-get install nghttp2-client")
    message = request_of(prompt_of(200)).SerializeToString()
    body = tmp_path / "request"
    body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=8, store=False)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        path, *headers = HTTP2
        load = ("-t1", "-c8", "-m10", "-n400", "-d", body)
        flags = (part for header in headers for part in ("-H", header))
        code, out, errors = await _run(
            Path(h2load), (*load, *flags, f"http://{_address(router)}{path}"), b""
        )
        said = out.decode() + errors
        assert code == 0 and "400 succeeded, 0 failed, 0 errored, 0 timeout" in said, said
        assert "status codes: 400 2xx, 0 3xx, 0 4xx, 0 5xx" in said
        await router.nothing_left()
        assert 'prefixlb_router_requests_total{code="OK",model="tiny"} 400.0' in (
            await router.metrics()
        )
        assert len(r0.served) == 400 and all(served.complete for served in r0.served)
