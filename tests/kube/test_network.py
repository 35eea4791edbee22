"""Who reaches whom, as the cluster enforces the policies that test_chart_policies.py reads."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chart import Object
from tests.kube.cluster import Cluster
from tests.kube.release import FULLNAME, NAME, Release, restricted_pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REACHES: dict[str, set[str]] = {
    "router": {"replica", "redis", "dns", "apiserver"},
    "replica": {"redis", "dns"},
    "redis": set(),
    "test": {"router", "dns"},
    "client": {"router", "dns", "apiserver", "foreigner"},
    "prometheus": {"router's metrics", "replica's metrics", "dns", "apiserver", "foreigner"},
    "foreigner": {"dns", "apiserver", "foreigner"},
}
"""All that each may; policies of the chart say nothing of what pods of others send elsewhere."""

FOREIGN_PORT = 8080

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reached(target):
    try:
        socket.create_connection(target, 2).close()
    except OSError:
        return False
    return True

targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(targets)) as threads:
    found = threads.map(reached, map(tuple, targets.values()))
    print(json.dumps([name for name, was in zip(targets, found) if was]))
"""


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str


@pytest.fixture
def sources(release: Release, namespace: str) -> Iterator[dict[str, Pod]]:
    """Pods of the release, and pods that are like others of it, or none of its own."""

    def like(part: str) -> dict[str, str]:
        labels = {"name": "prefixlb", "instance": NAME, "component": part}
        return {f"app.kubernetes.io/{key}": value for key, value in labels.items()}

    # Never ready, so that no Service sends there.
    never: Object = {"readinessProbe": {"exec": {"command": ["false"]}}}
    waits = {**never, "command": ["sleep", "600"]}
    serves = {**never, "command": ["python3", "-m", "http.server", str(FOREIGN_PORT)]}
    made = {
        # First: that it reaches itself says that those after it are not kept from nothing.
        "foreigner": (Pod(namespace, "foreigner"), {}, serves),
        # Redis's image has nothing to connect with.
        "redis": (Pod(release.namespace, "like-redis"), like("redis"), waits),
        "test": (Pod(release.namespace, "like-test"), like("test"), waits),
        "client": (Pod(release.namespace, "client"), {}, waits),
        "prometheus": (Pod(release.monitoring, "prometheus-like"), {}, waits),
    }
    release.cluster.apply(
        *(
            restricted_pod(pod.name, pod.namespace, labels=labels, **does)
            for pod, labels, does in made.values()
        )
    )
    for pod, _, _ in made.values():
        running = "--for=jsonpath={.status.phase}=Running"
        release.cluster.kubectl(
            "-n", pod.namespace, "wait", running, f"pod/{pod.name}", "--timeout=60s"
        )
    own = {
        part: Pod(release.namespace, release.pods(part)[-1]["metadata"]["name"])
        for part in ("router", "replica")
    }
    yield {source: pod for source, (pod, _, _) in made.items()} | own
    for pod, _, _ in made.values():
        release.cluster.kubectl("-n", pod.namespace, "delete", "pod", pod.name, "--wait=false")


def reaches(cluster: Cluster, pod: Pod, targets: dict[str, tuple[str, int]]) -> set[str]:
    """Names of the targets to which a pod comes."""
    said = cluster.kubectl(
        *("-n", pod.namespace, "exec", pod.name, "--"),
        *("python3", "-c", CONNECT, json.dumps(targets)),
    )
    return set(json.loads(said))


def test_only_who_has_business_there_reaches_a_port(
    release: Release, sources: dict[str, Pod]
) -> None:
    cluster = release.cluster

    def address(part: str) -> str:
        """Of one that is of the release, and not only like it."""
        pods = [p for p in release.pods(part) if p["metadata"]["name"].startswith(FULLNAME)]
        return str(pods[0]["status"]["podIP"])

    def pod_address(pod: Pod) -> str:
        (found,) = cluster.get("pod", pod.name, "-n", pod.namespace)
        return str(found["status"]["podIP"])

    def service(name: str, namespace: str) -> str:
        (found,) = cluster.get("service", name, "-n", namespace)
        return str(found["spec"]["clusterIP"])

    targets = {
        "router": (address("router"), 30000),
        "router's metrics": (address("router"), 29000),
        "replica": (address("replica"), 30001),
        "replica's metrics": (address("replica"), 29001),
        "redis": (address("redis"), 6379),
        "dns": (service("kube-dns", "kube-system"), 53),
        "apiserver": (service("kubernetes", "default"), 443),
        "foreigner": (pod_address(sources["foreigner"]), FOREIGN_PORT),
    }
    assert set(sources) == set(REACHES)
    found: dict[str, set[str]] = {}

    def enforced() -> bool:
        """The cluster has to learn of new pods first."""
        found.update({each: reaches(cluster, pod, targets) for each, pod in sources.items()})
        return found == REACHES

    try:
        cluster.wait_for("policies are enforced", enforced, timeout_s=20)
    finally:
        for source, names in found.items():
            print(f"{source} reaches {sorted(names)}")
    assert found == REACHES
