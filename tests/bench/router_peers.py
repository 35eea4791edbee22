"""smg and sglang-router as processes to be measured, each from PyPI in an environment of its own.

They speak HTTP/1.1 on both sides and are asked with text, 4 characters for a token of ours; their
policy is cache_aware. 32 requests at once are 32 connections.
"""

import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil

from router.cli.model import cache_dir
from tests.bench.h2load import HTTP1, Load, cpu, process, run
from tests.bench.token_gaps import event_gaps
from tests.ports import free_port

UNARY = "short unary, 32 at once"
LARGE = "16k-token prompt on top of a short one"
ALONE = "added p50 alone"
BURST = "16 messages at once"
PACED = "16 messages, one every 5 ms"
GAPS = "p99 gap of tokens sent every 5.5 ms"


@dataclass(frozen=True)
class Peer:
    """A router as PyPI has it."""

    name: str
    version: str
    command: Sequence[str]
    """Below the environment's bin."""

    @property
    def directory(self) -> Path:
        return cache_dir() / "peers" / f"{self.name}-{self.version}"

    def fetch(self) -> None:
        """Make the environment. Raises CalledProcessError."""
        pip = (self.directory / "bin" / "python", "-m", "pip", "install", "--quiet")
        try:
            subprocess.run([sys.executable, "-m", "venv", self.directory], check=True)
            subprocess.run([*pip, f"{self.name}=={self.version}"], check=True)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)  # what is there is whole
            raise

    @contextmanager
    def running(self, replicas: Sequence[int]) -> Iterator[tuple[int, psutil.Process]]:
        """Its port, once it answers."""
        port = free_port()
        program, *arguments = self.command
        flags = (
            *("--host", "127.0.0.1", "--port", port, "--policy", "cache_aware"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", free_port()),
            *("--worker-startup-check-interval", 1, "--log-level", "error"),
            *("--worker-urls", *(f"http://127.0.0.1:{replica}" for replica in replicas)),
        )
        path = self.directory / "bin" / program
        with process(path, *arguments, *flags, port=port) as watched:
            _wait_for_answer(port)
            yield port, watched


PEERS = (
    Peer("smg", "1.13.0", ("smg", "launch")),
    Peer("sglang-router", "0.3.2", ("python", "-m", "sglang_router.launch_router")),
)


def available(*, fetch: bool) -> list[Peer]:
    """Those that are here; all of them, if they may be fetched."""
    for peer in PEERS:
        if fetch and not peer.directory.exists():
            peer.fetch()
    return [peer for peer in PEERS if peer.directory.exists()]


def measure(peer: Peer, rounds: int, directory: Path) -> dict[str, list[float]]:
    """Seconds, a request, by the names above."""
    log = directory / "h2load.log"

    def costs(load: Load, at: tuple[int, psutil.Process]) -> list[float]:
        return cpu([run(load, *at, log) for _ in range(rounds + 1)][1:])

    def load(tokens: int, requests: int, connections: int, *, stream: bool = False) -> Load:
        body = _request_file(directory, tokens, stream=stream)
        return Load("", body, requests, connections, 1, http1=True)

    found = {}
    with _replicas(4, 0, 0) as replicas, peer.running(replicas) as at:
        found[UNARY] = costs(load(200, 5_000, 32), at)
        short_s = statistics.median(found[UNARY])
        found[LARGE] = [each - short_s for each in costs(load(16_000, 2_000, 32), at)]
        alone = load(200, 2_000, 1)
        direct_s = run(alone, replicas[0], None, log).p50_s
        found[ALONE] = [run(alone, *at, log).p50_s - direct_s for _ in range(rounds)]
    with _replicas(4, 16, 0) as replicas, peer.running(replicas) as at:
        found[BURST] = costs(load(200, 5_000, 32, stream=True), at)
    with _replicas(2, 16, 5) as replicas, peer.running(replicas) as at:
        found[PACED] = costs(load(200, 1_500, 32, stream=True), at)
    with _replicas(2, 200, 5.5) as replicas, peer.running(replicas) as (port, _):
        body = _request_file(directory, 200, stream=True).read_bytes()
        found[GAPS] = [event_gaps(port, HTTP1[0], body) for _ in range(rounds)]
    return found


@contextmanager
def _replicas(number: int, messages: int, gap_ms: float) -> Iterator[list[int]]:
    ports = [free_port() for _ in range(number)]
    with ExitStack() as stack:
        for port in ports:
            module = (sys.executable, "-m", "tests.bench.http1_replica", port, messages, gap_ms)
            stack.enter_context(process(*module, port=port))
        yield ports


def _request_file(directory: Path, tokens: int, *, stream: bool) -> Path:
    letters = random.Random(tokens).choices("abcdefghijklmnopqrstuvwxyz  ", k=4 * tokens)
    request = {"model": "bench", "max_tokens": 16, "stream": stream, "prompt": "".join(letters)}
    path = directory / f"request-{tokens}-{stream}.json"
    path.write_text(json.dumps(request))
    return path


def _wait_for_answer(port: int) -> None:
    body = json.dumps({"model": "bench", "prompt": "hello", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json"}
    request = Request(f"http://127.0.0.1:{port}{HTTP1[0]}", data=body, headers=headers)
    deadline_s = time.monotonic() + 40
    while True:
        try:
            with urlopen(request, timeout=3):
                return
        except (URLError, OSError):  # it has not looked at its workers yet
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.3)
