"""One process of a local cluster: started, watched and ended by its parent, logging to a file."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from router.cli import tied
from router.cli.signals import held_back

END_GRACE_S = 30.0
"""How long a process has to finish what it has begun: as long as a router drains."""


def tied_to_us(command: Sequence[str]) -> list[str]:
    """On Linux the command so that it ends as on SIGTERM when this process is gone.

    By a program in between rather than a `preexec_fn`, for which Python would fork: in a process
    with the threads of gRPC, the fork can crash before it becomes the command. From the main
    thread alone, since what Linux looks at is the end of the thread that starts a process.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return list(command)
    return [sys.executable, "-I", "-S", tied.__file__, str(os.getpid()), *command]


class Child:
    """A command that runs as a child process, again and again at the same address."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        address: str,
        metrics_url: str | None = None,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is added to this process's own. The log is appended to."""
        self.name = name
        self.command = list(command)
        self.address = address
        self.metrics_url = metrics_url
        self.log = log
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    def start(self) -> None:
        """Run it, in a session of its own: Ctrl-C reaches the parent alone, which ends children."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self._started_s = time.monotonic()
        with self.log.open("ab") as log, held_back():
            self._process = subprocess.Popen(
                tied_to_us(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the present or last run. Raises RuntimeError if it was never started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Of the last run, negative for a signal; None while it runs or was never started."""
        return self._process.poll() if self._process else None

    @property
    def age_s(self) -> float:
        """Seconds since it was last started."""
        return time.monotonic() - self._started_s

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs: SIGKILL to crash it, SIGSTOP and SIGCONT to freeze it."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would; returns once it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, grace_s: float = END_GRACE_S) -> None:
        """Ask it to end, and kill it if it has not after `grace_s`."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once it has ended. Raises subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.wait(timeout_s)

    def last_lines(self, count: int = 12) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def ending(self) -> str:
        """That it ended, and how."""
        code = self.exit_code
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        return f"{self.name} ended ({how})"

    def last_words(self) -> str:
        """The end of its log, and where that is."""
        return f"its last lines in {self.log}:\n{self.last_lines()}"

    def obituary(self) -> str:
        """What to tell a person when it ended by itself."""
        return f"{self.ending()}; {self.last_words()}"
