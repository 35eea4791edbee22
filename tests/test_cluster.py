"""A whole cluster of real processes around a tiny model: up, down, killed, restarted, replaced."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import proto.client
from proto.client import Client
from router.cli.cluster import ClusterError, LocalCluster
from router.cli.fleet_view import view_fleet
from router.cli.readiness import serves
from tests.ports import free_port
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.redis, pytest.mark.slow]
ROOT = Path(__file__).parent.parent
PROMPT = list(range(3, 203))
SLOTS = ("--slots", "2048")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="module")
def cluster(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    state_dir = tmp_path_factory.mktemp("cluster")
    with LocalCluster(model=tiny, state_dir=state_dir, replica_flags=SLOTS) as cluster:
        yield cluster


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "never held"
        time.sleep(0.05)


def mirrors_equal(cluster: LocalCluster) -> bool:
    return all(view.mirror_equals_tree for view in view_fleet(cluster.router.address))


def test_everything_serves_and_the_second_request_reuses_the_first(cluster: LocalCluster) -> None:
    assert all(serves(child.address) for child in (cluster.router, *cluster.replicas))
    with Client(cluster.router.address) as client:
        first = client.complete(PROMPT, max_tokens=4)
        eventually(lambda: mirrors_equal(cluster))
        second = client.complete(PROMPT, max_tokens=4)
    assert (first.cached_tokens, second.cached_tokens) == (0, len(PROMPT) - 1)
    assert first.token_ids == second.token_ids
    assert first.route and second.route and second.route.replica == first.route.replica
    assert (second.route.matched_tokens, second.route.reason) == (192, "prefix")


def test_examples_of_readme_and_client_run_as_they_stand(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    twin = re.search(r"\n\n((?:    .*\n)+)", proto.client.__doc__ or "")
    assert readme and twin
    asynchronous = f"async def example() -> None:\n{twin[1]}\nasyncio.run(example())"
    for code in (readme[1], asynchronous):
        assert "127.0.0.1:30000" in code
        exec(
            code.replace("127.0.0.1:30000", cluster.router.address),
            {"AsyncClient": proto.client.AsyncClient, "asyncio": asyncio},
        )
        assert capsys.readouterr().out.endswith("tokens were cached\n")


def test_secret_is_readable_by_its_owner_alone_and_logs_hold_no_prompt(
    cluster: LocalCluster,
) -> None:
    assert cluster.secret_file.stat().st_mode & 0o077 == 0
    with Client(cluster.router.address) as client:
        client.complete("a sentence nobody else says", max_tokens=1)
    logs = [child.log.read_text() for child in cluster.children]
    assert all(logs) and not any("nobody else" in log for log in logs)


def test_every_metrics_page_answers(cluster: LocalCluster) -> None:
    for child in (cluster.router, *cluster.replicas):
        assert child.metrics_url
        with urllib.request.urlopen(child.metrics_url, timeout=5) as page:
            assert b"prefixlb_" in page.read()


def test_killed_replica_comes_back_empty_at_its_address(cluster: LocalCluster) -> None:
    with Client(cluster.router.address) as client:
        route = client.complete(PROMPT, max_tokens=1).route
        assert route
        victim = next(child for child in cluster.replicas if child.name == route.replica)
        victim.kill()
        elsewhere = client.complete(PROMPT, max_tokens=1, timeout_s=30).route
        assert elsewhere and elsewhere.replica != victim.name
        cluster.start()
        assert serves(victim.address)
        eventually(lambda: mirrors_equal(cluster))
        back = next(
            view for view in view_fleet(cluster.router.address) if view.replica_id == victim.name
        )
        assert back.info and back.info.count == 0


def test_router_with_another_policy_takes_over_the_address(cluster: LocalCluster) -> None:
    address = cluster.router.address
    cluster.restart_router("round_robin")
    assert cluster.router.address == address
    with Client(address) as client:
        routes = [client.complete(PROMPT, max_tokens=1).route for _ in range(4)]
    assert {route.reason for route in routes if route} == {"policy"}
    assert len({route.replica for route in routes if route}) == 2


def test_second_cluster_at_a_taken_port_does_not_take_the_first_for_its_own(
    cluster: LocalCluster, tiny: Path, tmp_path: Path
) -> None:
    port = int(cluster.router.address.rpartition(":")[2])
    second = LocalCluster(model=tiny, state_dir=tmp_path, port=port, replica_flags=SLOTS)
    with pytest.raises(ClusterError, match=f"(?s)router ended.*{port}"), second:
        pass
    assert serves(cluster.router.address)


def test_the_routers_page_is_where_it_is_told_to_be(tmp_path: Path) -> None:
    cluster = LocalCluster(model=tmp_path, state_dir=tmp_path, metrics_port=29000)
    assert cluster.router.metrics_url == "http://127.0.0.1:29000/metrics"
    assert cluster.status_page_url == "http://127.0.0.1:29000/ui"


def test_cluster_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    broken = LocalCluster(model=tmp_path / "no-such-model", state_dir=tmp_path)
    with pytest.raises(ClusterError, match="no-such-model"), broken:
        pass
    assert not any(child.running for child in broken.children)


def test_up_starts_the_dead_once_more_and_ends_all_on_ctrl_c(tiny: Path, tmp_path: Path) -> None:
    router = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "router.cli", "up", "--model", str(tiny), "--slots", "512"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        up = subprocess.Popen(
            [*command, "--port", router.rpartition(":")[2]],
            stdout=out,
            stderr=err,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    try:
        eventually(lambda: "Ctrl-C ends it" in (tmp_path / "out").read_text(), 60)
        shown = (tmp_path / "out").read_text()
        assert router in shown and re.search(r"replica-1 .*/metrics", shown)
        children = psutil.Process(up.pid).children()
        assert len(children) == 4
        pid = re.search(r"^replica-1 .* (\d+)$", shown, re.MULTILINE)
        assert pid
        os.kill(int(pid[1]), signal.SIGKILL)
        eventually(lambda: "replica-1 ended (SIGKILL)" in (tmp_path / "err").read_text())
        eventually(lambda: "replica-1 is started again, as pid " in (tmp_path / "out").read_text())
        (anew,) = {child.pid for child in psutil.Process(up.pid).children()} - {
            child.pid for child in children
        }
        assert f"as pid {anew}\n" in (tmp_path / "out").read_text()
        os.kill(anew, signal.SIGKILL)
        eventually(lambda: "replica-1 ended twice in a row" in (tmp_path / "err").read_text())
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0
        (kept,) = tmp_path.glob("prefixlb-*")
        assert f"logs are in {kept}" in (tmp_path / "err").read_text()
        assert (kept / "replica-1.log").exists() and not (kept / "hash-secret").exists()
    finally:
        up.kill()
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_no_process(
    tiny: Path, tmp_path: Path, number: signal.Signals
) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "router.cli", "demo", "--model", str(tiny)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    started: list[psutil.Process] = []

    def has_children() -> bool:
        started[:] = psutil.Process(demo.pid).children()
        return len(started) == 4

    eventually(has_children, 60)
    demo.send_signal(number)
    assert demo.wait(30) == 130
    assert not list(tmp_path.glob("prefixlb-*"))
    eventually(lambda: not any(child.is_running() for child in started))
