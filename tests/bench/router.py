"""The data plane beside nghttpx, a proxy in C++ that routes nothing: CPU time, added delay.

Needs h2load, nghttpd and nghttpx (Debian: nghttp2-client, nghttp2-server, nghttp2-proxy).
`python -m tests.bench.router [--json] [--rounds N]`. CPU time is that of the proxy's process, by
/proc, so that neighbours on the machine disturb it least; both proxies use one thread.
"""

import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from tests.authority import Authority, Pair
from tests.bench.figures import Figure, run_benchmark
from tests.bench.http2_replica import LAST, MESSAGE
from tests.bench.token_gaps import token_gaps
from tests.ports import free_port

TITLE = "the router's data plane"
PATH = "/prefixlb.v1.Inference/Generate"
REPLICAS = 4


@dataclass(frozen=True)
class Load:
    """What h2load does."""

    name: str
    body: Path
    requests: int
    connections: int
    streams: int


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
        while not any(c.laddr.port == port for c in watched.net_connections() if c.laddr):
            assert child.poll() is None and time.monotonic() < deadline_s, arguments
            time.sleep(0.05)
        yield watched
        child.terminate()


def framed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def request_file(directory: Path, tokens: int) -> Path:
    request = GenerateRequest(model="bench")
    request.tokens.ids.extend(range(tokens))
    path = directory / f"request-{tokens}"
    path.write_bytes(framed(request.SerializeToString()))
    return path


def run(
    load: Load, port: int, proxy: psutil.Process | None, log: Path, scheme: str = "http"
) -> Cost:
    """One run of h2load against a port; every request must succeed."""
    before = proxy.cpu_times() if proxy else None
    log.unlink(missing_ok=True)
    command = [
        *("h2load", "-t1", f"-c{load.connections}", f"-m{load.streams}", f"-n{load.requests}"),
        *("-d", load.body, "--log-file", log),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),
        f"{scheme}://127.0.0.1:{port}{PATH}",
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


@dataclass(frozen=True)
class Ports:
    direct: int
    ours: tuple[int, psutil.Process]
    peer: tuple[int, psutil.Process]
    scheme: str


@contextmanager
def proxies(replicas: Sequence[int], tls: Pair | None = None) -> Iterator[Ports]:
    """Both, in front of the same replicas, which they reach in clear."""
    frontend, ours_flags, peer_flags = ";no-tls", (), ()
    if tls:
        frontend = ""
        ours_flags, peer_flags = ("--tls", tls.cert, tls.key), (tls.key, tls.cert)
    with ExitStack() as stack:
        ours, peer = free_port(), free_port()
        module = (sys.executable, "-m", "tests.bench.lone_plane", ours, 1)
        addresses = [f"127.0.0.1:{port}" for port in replicas]
        our_process = stack.enter_context(process(*module, *addresses, *ours_flags, port=ours))
        peer_process = stack.enter_context(
            process(
                *("nghttpx", f"-f127.0.0.1,{peer}{frontend}"),
                *(f"-b127.0.0.1,{port};;proto=h2" for port in replicas),
                *("--workers=1", "--single-process", "--no-ocsp", "--accesslog-file=/dev/null"),
                "--frontend-http2-max-concurrent-streams=4096",
                "--backend-http2-max-concurrent-streams=4096",
                *peer_flags,
                port=peer,
            )
        )
        yield Ports(
            replicas[0],
            (ours, our_process),
            (peer, peer_process),
            "https" if tls else "http",
        )


@contextmanager
def static_replicas(directory: Path, answer: bytes) -> Iterator[list[int]]:
    """nghttpd, which answers with a file."""
    served = directory / PATH[1:]
    served.parent.mkdir(parents=True, exist_ok=True)
    served.write_bytes(answer)
    ports = [free_port() for _ in range(REPLICAS)]
    # Windows as gRPC servers open them once much is sent.
    flags = (
        *("--no-tls", "-a", "127.0.0.1", "-m", 4096, "--trailer=grpc-status: 0"),
        *("--window-bits=22", "--connection-window-bits=24"),
    )
    with ExitStack() as stack:
        for port in ports:
            command = ("nghttpd", *flags, "-d", directory, port)
            stack.enter_context(process(*command, port=port))
        yield ports


@contextmanager
def paced_replicas(messages: int, gap_ms: float) -> Iterator[list[int]]:
    ports = [free_port() for _ in range(2)]
    with ExitStack() as stack:
        for port in ports:
            module = (sys.executable, "-m", "tests.bench.http2_replica", port, messages, gap_ms)
            stack.enter_context(process(*module, port=port))
        yield ports


def compare(load: Load, ports: Ports, rounds: int, log: Path) -> tuple[list[Cost], list[Cost]]:
    """Ours and the peer's, in turns, after a run that is not counted."""
    ours, peer = [], []
    for number in range(rounds + 1):
        for costs, (port, proxy) in ((ours, ports.ours), (peer, ports.peer)):
            cost = run(load, port, proxy, log, ports.scheme)
            if number:
                costs.append(cost)
    return ours, peer


def cpu(costs: Sequence[Cost]) -> list[float]:
    return [cost.cpu_s for cost in costs]


def messages_of(count: int) -> bytes:
    return MESSAGE * (count - 1) + LAST


def measure(rounds: int) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = directory / "h2load.log"
        short, long = request_file(directory, 200), request_file(directory, 16_000)
        with static_replicas(directory, LAST) as replicas, proxies(replicas) as ports:
            unary = Load("short unary, 32 over 8 connections", short, 20_000, 8, 4)
            ours, peer = compare(unary, ports, rounds, log)
            figures.append(Figure(f"CPU: {unary.name}", cpu(ours), cpu(peer), 1.6))
            short_s = statistics.median(cpu(ours))
            large = Load("16k-token prompt on top of a short one", long, 4_000, 8, 4)
            ours, peer = compare(large, ports, rounds, log)
            added_s = [max(0.0, each - short_s) for each in cpu(ours)]
            bound_s = [0.4 * each + 20e-6 for each in cpu(peer)]
            figures.append(Figure(f"CPU: {large.name}, 0.4 x + 20 us", added_s, bound_s, 1.0))
            alone = Load("alone", short, 3_000, 1, 1)
            ours, peer = compare(alone, ports, rounds, log)
            direct = [run(alone, ports.direct, None, log).p50_s for _ in range(rounds)]
            added_s = [each.p50_s - statistics.median(direct) for each in ours]
            figures.append(Figure("added p50 alone, beside 135 us", added_s, [135e-6] * rounds, 1))
            peer_s = [each.p50_s - statistics.median(direct) for each in peer]
            figures.append(Figure("the same, beside nghttpx's", added_s, peer_s, 1.15))
        pair = Authority(directory).issue("tls", "127.0.0.1")
        with static_replicas(directory, LAST) as replicas, proxies(replicas, pair) as ports:
            for load in (unary, large):
                ours, peer = compare(load, ports, rounds, log)
                figures.append(Figure(f"CPU over TLS: {load.name}", cpu(ours), cpu(peer), 1.6))
        with (
            static_replicas(directory, messages_of(16)) as replicas,
            proxies(replicas) as ports,
        ):
            burst = Load("16 messages at once", short, 20_000, 1, 32)
            ours, peer = compare(burst, ports, rounds, log)
            figures.append(Figure(f"CPU: {burst.name}", cpu(ours), cpu(peer), 2.1))
        with paced_replicas(16, 5) as replicas, proxies(replicas) as ports:
            paced = Load("16 messages, one every 5 ms", short, 1_500, 1, 32)
            ours, peer = compare(paced, ports, rounds, log)
            figures.append(Figure(f"CPU: {paced.name}", cpu(ours), cpu(peer), 1.0))
        with paced_replicas(200, 5.5) as replicas, proxies(replicas) as ports:
            gaps = [token_gaps(ports.ours[0]) for _ in range(rounds)]
            beside = [token_gaps(ports.direct) + 1e-3 for _ in range(rounds)]
            figures.append(Figure("p99 gap of tokens sent every 5.5 ms", gaps, beside, 1.0))
    return figures


if __name__ == "__main__":
    run_benchmark(__doc__ or "", (TITLE, measure))
