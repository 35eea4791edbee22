"""`python -m replica` as a process of its own, with a model written for the test."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc

from tests.ports import free_port


class ReplicaProcess:
    """`python -m replica` on free ports, its log collected line by line."""

    def __init__(
        self,
        model: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "replica"),
    ) -> None:
        """`environment` is set on top of the test's own; `program`: what Python runs."""
        self.port, self.metrics_port = free_port(), free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, *program, "--model", str(model), "--threads", "1"),
                *("--port", str(self.port), "--metrics-port", str(self.metrics_port)),
                *("--slots", "2000", *flags),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.lines += stream

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            yield channel

    def finish(self, timeout_s: float = 20.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()


def run_replica(*flags: str) -> subprocess.CompletedProcess[str]:
    """One that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "replica", *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )
