"""What may happen to an installation under load: each costs cache, and no request."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kube.release import FULLNAME, NAME, REDIS, REPLICAS, ROUTERS, Release
from tests.kube.steady_load import CLIENTS, steadily_loaded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST = f"{FULLNAME}-replica-0"
APISERVER_PID = "PREFIXLB_TEST_APISERVER_PID"

DRAIN_S = 600
"""Replicas one after another, each until the next is ready."""


def test_scaling_replicas_up_and_down_loses_no_request(release: Release) -> None:
    count = len(release.pods("replica"))
    try:
        with steadily_loaded(release) as load:
            release.scale(REPLICAS, 2)
            release.scale(REPLICAS, 4)
            added = f"{FULLNAME}-replica-2", f"{FULLNAME}-replica-3"
            load.uses(*added)
            load.mark()
            release.scale(REPLICAS, 2)
        assert set(load.lost) == set(added) and all(load.lost.values())
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

    with steadily_loaded(release, may_break=CLIENTS) as load:
        release.cluster.kubectl(
            *("-n", release.namespace, "exec", FIRST, "--", "python3", "-c", TAKE_ALL_MEMORY),
            check=False,
        )
        release.cluster.wait_for("it was killed", lambda: last_end() == "OOMKilled", timeout_s=60)
        release.rolled(REPLICAS)
        load.uses(FIRST)
    assert set(load.lost) == {FIRST} and load.lost[FIRST] > 0


def drain(release: Release) -> str:
    """All of the release from its nodes, which take new pods again at once: there may be no others.

    Returns what it says of that, when all that were there have gone.
    """
    selector = f"app.kubernetes.io/name=prefixlb,app.kubernetes.io/instance={NAME}"
    running = release.cluster.get("pods", "--all-namespaces", "-l", selector)
    # A drain asks for no namespace.
    assert {pod["metadata"]["namespace"] for pod in running} == {release.namespace}
    nodes = sorted({pod["spec"]["nodeName"] for pod in running})
    command = ["kubectl", "drain", *nodes, "--delete-emptydir-data", f"--timeout={DRAIN_S}s"]
    command.append(f"--pod-selector={selector}")

    def cordoned() -> bool:
        return all(
            each["spec"].get("unschedulable") for each in release.cluster.get("nodes", *nodes)
        )

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as draining:
        try:
            release.cluster.wait_for("no new pods come", cordoned, timeout_s=30)
        finally:
            release.cluster.kubectl("uncordon", *nodes)
        said, _ = draining.communicate()
    assert draining.returncode == 0, said
    return said


def test_a_node_is_drained_one_replica_and_one_router_at_a_time(release: Release) -> None:
    replicas = {pod["metadata"]["name"] for pod in release.pods("replica")}
    with steadily_loaded(release) as load:
        said = drain(release)
        release.rolled(REPLICAS, ROUTERS, REDIS)
    assert set(load.lost) == replicas and all(load.lost.values())
    for part in ("replica", "router"):
        assert re.search(rf'evicting pods/"{FULLNAME}-{part}-.*disruption budget', said), said


def test_redis_restarts_and_no_request_is_lost(release: Release) -> None:
    with steadily_loaded(release) as load:
        release.roll(REDIS)
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
