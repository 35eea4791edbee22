"""Runs of h2load through a proxy, and the CPU time that the proxy's process takes meanwhile."""

import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

HTTP2 = ("/prefixlb.v1.Inference/Generate", "content-type: application/grpc", "te: trailers")
HTTP1 = ("/v1/completions", "content-type: application/json")
"""What is called, and headers."""


@dataclass(frozen=True)
class Load:
    """What h2load does."""

    name: str
    body: Path
    requests: int
    connections: int
    streams: int
    """Of each connection; HTTP/1.1 has one."""
    http1: bool = False


@dataclass(frozen=True)
class Cost:
    """Of one run, each a request."""

    cpu_s: float
    p50_s: float


@contextmanager
def process(*command: str | int | Path, port: int) -> Iterator[psutil.Process]:
    """Listens on `port` when the block begins, and ends with it."""
    arguments = [str(part) for part in command]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        watched = psutil.Process(child.pid)
        deadline_s = time.monotonic() + 20
        try:
            while not any(c.laddr.port == port for c in watched.net_connections() if c.laddr):
                assert child.poll() is None and time.monotonic() < deadline_s, arguments
                time.sleep(0.05)
            yield watched
        finally:
            child.terminate()
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()


def run(
    load: Load, port: int, proxy: psutil.Process | None, log: Path, scheme: str = "http"
) -> Cost:
    """One run of h2load against a port; every request must succeed."""
    before = proxy.cpu_times() if proxy else None
    log.unlink(missing_ok=True)
    path, *headers = HTTP1 if load.http1 else HTTP2
    command = [
        *("h2load", "-t1", f"-c{load.connections}", f"-m{load.streams}", f"-n{load.requests}"),
        *("-d", load.body, "--log-file", log, *(["--h1"] if load.http1 else [])),
        *(part for header in headers for part in ("-H", header)),
        f"{scheme}://127.0.0.1:{port}{path}",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done = re.search(r"(\d+) succeeded, (\d+) failed", said)
    assert done and (int(done[1]), int(done[2])) == (load.requests, 0), said
    spent_s = 0.0
    if proxy and before:
        after = proxy.cpu_times()
        spent_s = after.user + after.system - before.user - before.system
    times_us = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
    return Cost(spent_s / load.requests, statistics.median(times_us) / 1e6)


def cpu(costs: Sequence[Cost]) -> list[float]:
    return [cost.cpu_s for cost in costs]
