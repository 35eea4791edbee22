"""router/cli/child.py: a process that is started, watched and ended by its parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from router.cli.child import Child

POLITE = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"


class Children:
    """Makes children and ends them after the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.made: list[Child] = []

    def python(self, code: str) -> Child:
        child = Child(
            "child",
            [sys.executable, "-c", code],
            address="127.0.0.1:1",
            log=self._directory / f"child-{len(self.made)}.log",
        )
        self.made.append(child)
        return child


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path)
    yield children
    for child in children.made:
        child.kill()


def wait_for_line(child: Child, count: int = 1) -> None:
    deadline_s = time.monotonic() + 10
    while child.last_lines().count("up") < count:
        assert time.monotonic() < deadline_s, child.last_lines()
        time.sleep(0.01)


def test_stop_asks_first(children: Children) -> None:
    child = children.python(POLITE)
    child.start()
    wait_for_line(child)
    child.stop()
    assert not child.running and child.exit_code == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels tell no child")
def test_a_parent_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    code = f"""
import signal, sys
from pathlib import Path
from router.cli.child import Child
command = [sys.executable, "-c", {POLITE!r}]
child = Child("child", command, address="", log=Path({str(tmp_path / "log")!r}))
child.start()
print(child.pid, flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    child.wait(10)


def test_a_child_outlives_the_thread_that_started_it(children: Children) -> None:
    child = children.python(POLITE)
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    wait_for_line(child)
    time.sleep(0.1)  # a signal for the thread's end would have come
    assert child.running


def test_no_python_runs_between_fork_and_exec(children: Children) -> None:
    """With gRPC's threads about, a fork that is more than a vfork may crash."""
    forked: list[str] = []
    os.register_at_fork(before=lambda: forked.append("fork"))
    child = children.python(POLITE)
    child.start()
    wait_for_line(child)
    assert forked == []


def test_stop_kills_what_does_not_end_in_time(children: Children) -> None:
    child = children.python(STUBBORN)
    child.start()
    wait_for_line(child)
    child.stop(grace_s=0.1)
    assert child.exit_code == -signal.SIGKILL


def test_killed_child_starts_again_and_appends_to_its_log(children: Children) -> None:
    child = children.python(POLITE)
    child.start()
    wait_for_line(child)
    first = child.pid
    child.kill()
    child.start()
    wait_for_line(child, 2)
    assert child.running and child.pid != first


def test_child_that_runs_is_not_started_twice(children: Children) -> None:
    child = children.python(POLITE)
    child.start()
    with pytest.raises(RuntimeError, match="running already"):
        child.start()


def test_obituary_tells_how_it_ended_and_its_last_words(children: Children) -> None:
    child = children.python("import sys; print('no model here'); sys.exit(3)")
    child.start()
    child.wait(10)
    assert child.ending() == "child ended (exit code 3)"
    assert child.obituary().startswith(child.ending())
    assert child.obituary().endswith("no model here")
    killed = children.python(POLITE)
    killed.start()
    killed.kill()
    assert "SIGKILL" in killed.obituary()


def test_ending_what_never_started_or_has_ended_does_nothing(children: Children) -> None:
    child = children.python("pass")
    child.stop()
    child.kill()
    assert child.exit_code is None
    child.start()
    child.wait(10)
    child.stop()
    assert child.exit_code == 0


def test_ctrl_c_in_the_terminal_does_not_reach_children(children: Children) -> None:
    child = children.python("import os; print('up', os.getpgrp() == os.getpid(), flush=True)")
    child.start()
    child.wait(10)
    assert child.last_lines() == "up True"
