"""The chart installed: it answers, it is updated without losing a request, and leaves nothing."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kube.cluster import Cluster
from tests.kube.release import FULLNAME, Release, restricted_pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOAD_SCRIPT = Path(__file__).parent / "load.py"
WORKERS = int(os.environ.get("PREFIXLB_TEST_WORKERS", "4"))


@dataclass
class Told:
    """What the load says of itself."""

    answered: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    cached: int = 0
    prompt: int = 0


class Load:
    """A pod of the router's image that asks the routers all the time."""

    def __init__(self, release: Release) -> None:
        self._release = release

    def told(self) -> Told:
        lines = self._release.kubectl("logs", "load", "--tail=1").splitlines()
        return Told(**json.loads(lines[-1])) if lines else Told()

    def answers(self, more: int) -> None:
        """Wait for so many more answers."""
        goal = self.told().answered + more
        self._release.cluster.wait_for(
            f"{more} more answers", lambda: self.told().answered >= goal, timeout_s=180
        )


@contextmanager
def loaded(release: Release) -> Iterator[Load]:
    """Steady load in the block."""
    config = {"name": "load", "namespace": release.namespace}
    release.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": config,
            "data": {"load.py": LOAD_SCRIPT.read_text()},
        },
        restricted_pod(
            "load",
            release.namespace,
            labels={"app": "load"},
            volumes=[{"name": "load", "configMap": {"name": "load"}}],
            command=["python", "/load/load.py"],
            env=[
                {"name": "WORKERS", "value": str(WORKERS)},
                {
                    "name": "PREFIXLB_ROUTER",
                    "value": f"{FULLNAME}-router.{release.namespace}.svc:30000",
                },
            ],
            volumeMounts=[{"name": "load", "mountPath": "/load"}],
        ),
    )
    try:
        release.kubectl("wait", "--for=condition=Ready", "pod/load", "--timeout=60s")
        load = Load(release)
        load.answers(10)
        yield load
    finally:
        release.kubectl("delete", "pod/load", "configmap/load", "--wait=true")


def settled(release: Release) -> None:
    """Every mirror equals its tree within 10 s."""
    release.cluster.wait_for("every mirror equals its tree", release.audited, timeout_s=30)


def test_helm_test_gets_an_answer(release: Release) -> None:
    log = release.test()
    answer = json.loads(log[log.index("{") : log.rindex("}") + 1])
    assert answer["completion_tokens"] > 0
    print(f"installed and ready in {release.install_s:.0f} s")


def test_routers_find_every_replica_and_mirror_it(release: Release) -> None:
    assert len(release.pods("replica")) >= 2
    settled(release)


def test_an_upgrade_without_a_change_makes_no_new_pods(release: Release) -> None:
    before = {p["metadata"]["uid"] for part in ("router", "replica") for p in release.pods(part)}
    release.upgrade(release.values())
    after = {p["metadata"]["uid"] for part in ("router", "replica") for p in release.pods(part)}
    assert after == before


def test_a_policy_changes_without_a_restart(release: Release) -> None:
    before = {pod["metadata"]["uid"] for pod in release.pods("router")}
    release.upgrade(release.values(policy="round_robin"))

    def changed() -> bool:
        logs = [
            release.kubectl("logs", each["metadata"]["name"]) for each in release.pods("router")
        ]
        return all("settings changed policy" in each for each in logs)

    release.cluster.wait_for("routers tell of the new policy", changed, timeout_s=150)
    assert {pod["metadata"]["uid"] for pod in release.pods("router")} == before
    release.rollback()


@pytest.mark.parametrize(
    "sets",
    [
        (f"deployment/{FULLNAME}-router",),
        (f"statefulset/{FULLNAME}-replica",),
        (f"deployment/{FULLNAME}-router", f"statefulset/{FULLNAME}-replica"),
    ],
    ids=["routers", "replicas", "both"],
)
def test_a_rolling_update_loses_no_request(release: Release, sets: tuple[str, ...]) -> None:
    with loaded(release) as load:
        before = load.told()
        release.roll(*sets)
        load.answers(10)
        after = load.told()
        print(f"{after.answered - before.answered} answered, {after.failed} failed: {sets}")
        assert after.failed == {}
    settled(release)


def test_a_deleted_replica_comes_back_and_is_used(release: Release) -> None:
    with loaded(release) as load:
        pod = f"{FULLNAME}-replica-0"
        release.kubectl("delete", "pod", pod, "--wait=true")
        release.kubectl("rollout", "status", f"statefulset/{FULLNAME}-replica", "--timeout=300s")
        used = load.told().replicas.get(pod, 0)
        release.cluster.wait_for(
            f"{pod} answers", lambda: load.told().replicas.get(pod, 0) > used, timeout_s=180
        )
        assert load.told().failed == {}
    settled(release)


def test_redis_restarts_and_no_request_is_lost(release: Release) -> None:
    with loaded(release) as load:
        release.roll(f"deployment/{FULLNAME}-redis")
        load.answers(20)
        assert load.told().failed == {}
    settled(release)


REACH = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 2).close()
        print(target, "reached")
    except OSError:
        print(target, "denied")
"""


def reached(cluster: Cluster, namespace: str, pod: str, targets: list[str]) -> set[str]:
    """Those of host:port that answer a pod."""
    said = cluster.kubectl(
        "-n", namespace, "exec", pod, "--", "python3", "-c", REACH, *targets
    ).splitlines()
    assert len(said) == len(targets)
    return {line.split()[0] for line in said if line.endswith("reached")}


def test_only_who_has_business_there_reaches_a_port(release: Release) -> None:
    """As tests/test_chart_policies.py reads the policies, the cluster enforces them."""
    cluster, namespace = release.cluster, release.namespace

    def address(part: str, port: int) -> str:
        return f"{release.pods(part)[0]['status']['podIP']}:{port}"

    ports = {
        "router": address("router", 30000),
        "router's metrics": address("router", 29000),
        "replica": address("replica", 30001),
        "replica's metrics": address("replica", 29001),
        "redis": address("redis", 6379),
    }
    allowed = {
        "router": {"replica", "redis"},
        "replica": {"redis"},
        "client": {"router"},
        "prometheus": {"router's metrics", "replica's metrics"},
    }
    places = {
        "router": (namespace, release.pods("router")[-1]["metadata"]["name"]),
        "replica": (namespace, release.pods("replica")[-1]["metadata"]["name"]),
        "client": (namespace, "reach"),
        "prometheus": (release.monitoring, "reach"),
    }
    for source in ("client", "prometheus"):
        where, pod = places[source]
        cluster.apply(restricted_pod(pod, where, command=["sleep", "600"]))
    try:
        for source in ("client", "prometheus"):
            where, pod = places[source]
            cluster.kubectl(
                *("-n", where, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=60s")
            )
        time.sleep(2.0)  # until whoever enforces policies knows of the new pods
        own = {part: release.pods(part)[-1]["status"]["podIP"] for part in ("router", "replica")}
        for source, (where, pod) in places.items():
            targets = {
                name: target
                for name, target in ports.items()
                if target.split(":")[0] != own.get(source)
            }
            found = reached(cluster, where, pod, list(targets.values()))
            names = {name for name, target in targets.items() if target in found}
            assert names == allowed[source] & set(targets), source
    finally:
        for source in ("client", "prometheus"):
            where, pod = places[source]
            cluster.kubectl("-n", where, "delete", "pod", pod, "--grace-period=0", "--force")


def test_uninstall_leaves_nothing(release: Release) -> None:
    """The last one, as the others need the release."""
    release.uninstall()
    release.cluster.wait_for("nothing is left", lambda: not release.remains(), timeout_s=180)
