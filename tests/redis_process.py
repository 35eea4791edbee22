"""A private redis-server for the time of a test."""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from router.cli.redis_server import redis_command
from tests.ports import free_port

START_TIMEOUT_S = 10.0


@contextlib.contextmanager
def redis_server(
    port: int | None = None, flags: Sequence[str] = (), conf: str | None = None
) -> Iterator[str]:
    """Run a redis-server on loopback; yields its URL once it listens, then ends it.

    `conf`: the text of a configuration file, such as a sentinel's needs.
    """
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="prefixlb-redis-") as directory:
        program, *options = redis_command(port, Path(directory))
        if conf is not None:
            file = Path(directory) / "redis.conf"
            file.write_text(conf)
            options = [str(file), "--port", str(port)]
        process = subprocess.Popen(
            [program, *options, "--logfile", f"{directory}/redis.log", *flags],
            stdin=subprocess.DEVNULL,
        )
        try:
            _wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"redis-server ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise AssertionError(f"redis-server did not listen on port {port}")
