"""What may happen to an installation under load: each costs cache, and no request."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kube.release import FULLNAME, REPLICAS, ROUTERS, Release
from tests.kube.steady_load import CLIENTS, steadily_loaded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST = f"{FULLNAME}-replica-0"
APISERVER_PID = "PREFIXLB_TEST_APISERVER_PID"


def test_scaling_replicas_up_and_down_loses_no_request(release: Release) -> None:
    count = len(release.pods("replica"))
    try:
        with steadily_loaded(release) as load:
            release.scale(REPLICAS, 2)
            release.scale(REPLICAS, 4)
            load.uses(f"{FULLNAME}-replica-3")
            release.scale(REPLICAS, 2)
        assert load.lost[f"{FULLNAME}-replica-2"] > 0
    finally:
        release.scale(REPLICAS, count)
    release.settle()


def test_scaling_routers_up_and_down_loses_no_request(release: Release) -> None:
    count = len(release.pods("router"))
    try:
        with steadily_loaded(release) as load:
            release.scale(ROUTERS, 4)
            release.settle()
            release.scale(ROUTERS, 2)
        assert load.lost == {}
    finally:
        release.scale(ROUTERS, count)


def test_a_deleted_replica_comes_back_and_is_used(release: Release) -> None:
    with steadily_loaded(release) as load:
        release.kubectl("delete", "pod", FIRST, "--wait=true")
        release.rolled(REPLICAS)
        load.uses(FIRST)
    assert set(load.lost) == {FIRST} and load.lost[FIRST] > 0


TAKE_ALL_MEMORY = """
import os
# Of no process, so that the largest one is killed for it: the replica.
held = os.memfd_create("held")
while True:
    os.write(held, bytes(2**24))
"""


def test_a_replica_out_of_memory_fails_what_it_had_begun_to_answer_and_nothing_else(
    release: Release,
) -> None:
    def last_end() -> str:
        (pod,) = release.cluster.get("pod", FIRST, "-n", release.namespace)
        (container,) = pod["status"]["containerStatuses"]
        return str(container["lastState"].get("terminated", {}).get("reason"))

    with steadily_loaded(release, may_fail=CLIENTS) as load:
        release.cluster.kubectl(
            *("-n", release.namespace, "exec", FIRST, "--", "python3", "-c", TAKE_ALL_MEMORY),
            check=False,
        )
        release.cluster.wait_for("it was killed", lambda: last_end() == "OOMKilled", timeout_s=60)
        release.rolled(REPLICAS)
        load.uses(FIRST)
    assert set(load.lost) == {FIRST} and load.lost[FIRST] > 0


def evict(release: Release, pod: str) -> bool:
    """Ask for it, as whoever drains a node does. False if a budget forbids it now."""
    wanted = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": release.namespace},
    }
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    done = subprocess.run(
        ["kubectl", "create", "--raw", path, "-f", "-"],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        assert "disruption budget" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_node_is_drained_one_replica_and_one_router_at_a_time(release: Release) -> None:
    """Of all pods at once, as if all were on one node; new ones may come back to it."""
    for part in ("replica", "router"):
        left = [pod["metadata"]["name"] for pod in release.pods(part)]
        refused = 0
        with steadily_loaded(release):
            while left:
                evicted = [pod for pod in left if evict(release, pod)]
                assert len(evicted) <= 1, evicted
                refused += len(left) - len(evicted)
                left = [pod for pod in left if pod not in evicted]
                if not evicted:
                    time.sleep(1.0)
            release.rolled(REPLICAS, ROUTERS)
        assert refused > 0


def test_redis_restarts_and_no_request_is_lost(release: Release) -> None:
    with steadily_loaded(release) as load:
        release.roll(f"deployment/{FULLNAME}-redis")
    assert load.lost == {}


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that does nothing in the block, though whoever dials it is connected."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_without_the_apiserver_for_a_minute_no_request_is_lost(release: Release) -> None:
    if APISERVER_PID not in os.environ:
        pytest.skip(f"needs ${APISERVER_PID}: the process of the apiserver, which is then frozen")
    with steadily_loaded(release) as load:
        with frozen(int(os.environ[APISERVER_PID])):
            time.sleep(60.0)
        release.cluster.wait_for(
            "the apiserver answers",
            lambda: release.cluster.kubectl("get", "--raw", "/readyz", check=False) == "ok",
        )
    assert load.lost == {}
