"""The data plane beside nghttpx, a proxy in C++ that routes nothing, and beside other routers.

Needs h2load, nghttpd and nghttpx (Debian: nghttp2-client, nghttp2-server, nghttp2-proxy).
`python -m tests.bench.router [--json] [--rounds N] [--peers]`. CPU time is that of the proxy's
process, by /proc, so that neighbours on the machine disturb it least; both proxies use one thread.
Other routers are measured if they are here, or with --peers fetched from PyPI.
"""

import statistics
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from tests.authority import Authority, Pair
from tests.bench import router_peers
from tests.bench.figures import Figure, command_line, report
from tests.bench.h2load import HTTP2, Cost, Load, cpu, process, run
from tests.bench.http2_replica import LAST, MESSAGE
from tests.bench.router_peers import ALONE, BURST, GAPS, LARGE, PACED, UNARY
from tests.bench.token_gaps import token_gaps
from tests.ports import free_port

TITLE = "the router's data plane"
REPLICAS = 4


def framed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def request_file(directory: Path, tokens: int) -> Path:
    request = GenerateRequest(model="bench")
    request.tokens.ids.extend(range(tokens))
    path = directory / f"request-{tokens}"
    path.write_bytes(framed(request.SerializeToString()))
    return path


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
    served = directory / HTTP2[0][1:]
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


def messages_of(count: int) -> bytes:
    return MESSAGE * (count - 1) + LAST


def measure(rounds: int, *, fetch_peers: bool = False) -> list[Figure]:
    peers = router_peers.available(fetch=fetch_peers)
    figures = []
    values: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = directory / "h2load.log"
        short, long = request_file(directory, 200), request_file(directory, 16_000)
        with static_replicas(directory, LAST) as replicas, proxies(replicas) as ports:
            unary = Load(f"{UNARY} over 8 connections", short, 20_000, 8, 4)
            ours, peer = compare(unary, ports, rounds, log)
            values[UNARY] = cpu(ours)
            figures.append(Figure(f"CPU: {unary.name}", values[UNARY], cpu(peer), 1.6))
            short_s = statistics.median(values[UNARY])
            large = Load(LARGE, long, 4_000, 8, 4)
            ours, peer = compare(large, ports, rounds, log)
            values[LARGE] = [max(0.0, each - short_s) for each in cpu(ours)]
            bound_s = [0.4 * each + 20e-6 for each in cpu(peer)]
            figures.append(Figure(f"CPU: {LARGE}, 0.4 x + 20 us", values[LARGE], bound_s, 1.0))
            alone = Load("alone", short, 3_000, 1, 1)
            ours, peer = compare(alone, ports, rounds, log)
            direct = [run(alone, ports.direct, None, log).p50_s for _ in range(rounds)]
            values[ALONE] = [each.p50_s - statistics.median(direct) for each in ours]
            goal_s = [135e-6] * rounds
            figures.append(Figure(f"{ALONE}, beside 135 us", values[ALONE], goal_s, 1))
            peer_s = [each.p50_s - statistics.median(direct) for each in peer]
            figures.append(Figure("the same, beside nghttpx's", values[ALONE], peer_s, 1.15))
        pair = Authority(directory).issue("tls", "127.0.0.1")
        with static_replicas(directory, LAST) as replicas, proxies(replicas, pair) as ports:
            for load in (unary, large):
                ours, peer = compare(load, ports, rounds, log)
                figures.append(Figure(f"CPU over TLS: {load.name}", cpu(ours), cpu(peer), 1.6))
        with (
            static_replicas(directory, messages_of(16)) as replicas,
            proxies(replicas) as ports,
        ):
            burst = Load(BURST, short, 20_000, 1, 32)
            ours, peer = compare(burst, ports, rounds, log)
            values[BURST] = cpu(ours)
            figures.append(Figure(f"CPU: {BURST}", values[BURST], cpu(peer), 2.1))
        with paced_replicas(16, 5) as replicas, proxies(replicas) as ports:
            paced = Load(PACED, short, 1_500, 1, 32)
            ours, peer = compare(paced, ports, rounds, log)
            values[PACED] = cpu(ours)
            figures.append(Figure(f"CPU: {PACED}", values[PACED], cpu(peer), 1.0))
        with paced_replicas(200, 5.5) as replicas, proxies(replicas) as ports:
            values[GAPS] = [token_gaps(ports.ours[0]) for _ in range(rounds)]
            beside = [token_gaps(ports.direct) + 1e-3 for _ in range(rounds)]
            figures.append(Figure(f"{GAPS}, beside direct + 1 ms", values[GAPS], beside, 1.0))
        for other in peers:
            theirs = router_peers.measure(other, rounds, directory)
            figures += [
                Figure(f"{other.name}: {name}", values[name], theirs[name], 1.0) for name in theirs
            ]
    return figures


if __name__ == "__main__":
    flags = command_line(__doc__ or "")
    flags.add_argument(
        "--peers", action="store_true", help="fetch other routers from PyPI if they are not here"
    )
    asked = flags.parse_args()
    report(asked, (TITLE, partial(measure, fetch_peers=asked.peers)))
