"""The chart on a cluster, with the small model: two routers, three replicas, Redis."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tests.chart import CHART, ROOT, Object, example, merge
from tests.kube.cluster import TIMEOUT_S, Cluster

NAME = "llm"
FULLNAME = "llm-prefixlb"
ROUTERS = f"deployment/{FULLNAME}-router"
REPLICAS = f"statefulset/{FULLNAME}-replica"
REDIS = f"deployment/{FULLNAME}-redis"

PREVIOUS = Path(__file__).parent / "prefixlb-0.1.0.tgz"
"""The chart's version before this one, as it was packaged."""

VALUES_FILE = "PREFIXLB_TEST_VALUES"
"""Names a file with values of the chart, for what a cluster needs beside those of the tests."""

_VALUES: Any = yaml.safe_load((CHART / "values.yaml").read_text())
_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
_REDIS = _VALUES["redis"]["image"]

ROUTER_IMAGE = f"prefixlb-router:{_VERSION}"
REPLICA_IMAGE = f"prefixlb-replica:{_VERSION}-trial"
REDIS_IMAGE = f"{_REDIS['repository']}:{_REDIS['tag']}"
PROMETHEUS_IMAGE = str(
    yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["prometheus"][
        "image"
    ]
)

OF_EVERY_NAMESPACE = {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}


def restricted_pod(
    name: str,
    namespace: str,
    *,
    labels: Mapping[str, str] | None = None,
    volumes: Sequence[Object] = (),
    **container: Any,
) -> Object:
    """A pod of the router's image at the restricted level, that runs once and ends at once."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": name,
                    "image": ROUTER_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
            "volumes": list(volumes),
        },
    }


class Release:
    """One installation of the chart in a namespace of its own."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        monitoring: str = "monitoring",
        runs: bool = True,
        values: Object | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """`runs`: whether there are nodes for its pods, so that it can be waited for.

        `values`: more of the chart's. `flags`: what `prefixlb` needs in a router's pod.
        """
        self._wait = "watcher" if runs else None
        self._values = values or {}
        self._flags = flags
        self.cluster = cluster
        self.namespace = namespace
        self.monitoring = monitoring
        self.router = f"{FULLNAME}-router.{namespace}.svc:30000"

    def values(self, **router_settings: Any) -> Object:
        values = example("cpu-trial")
        values["router"]["replicas"] = 2
        values["router"]["settings"] |= router_settings
        values["router"]["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
        values["replica"]["replicas"] = 3
        values["replica"]["resources"]["requests"] = {"cpu": "50m", "memory": "512Mi"}
        values["image"] = {"pullPolicy": "IfNotPresent"}
        values["discovery"] = "kubernetes"
        values["networkPolicy"] = {
            "prometheus": [
                {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": self.monitoring}
                    }
                }
            ]
        }
        values["monitoring"] = {"scrapeAnnotations": True}
        if file := os.environ.get(VALUES_FILE):
            merge(values, yaml.safe_load(Path(file).read_text()))
        merge(values, self._values)
        return values

    def install(self, chart: Path = CHART) -> None:
        with self._helm() as helm:
            helm.install(chart, NAME, self.values(), wait=self._wait, timeout=int(TIMEOUT_S))

    def upgrade(self, values: Object, chart: Path = CHART) -> None:
        with self._helm() as helm:
            helm.upgrade(chart, NAME, values, wait=self._wait, timeout=int(TIMEOUT_S))

    def rollback(self) -> None:
        with self._helm() as helm:
            helm.rollback(NAME, wait=self._wait, timeout=int(TIMEOUT_S))

    def test(self) -> str:
        """The log of `helm test`. Raises HelmReleaseError if it fails."""
        with self._helm() as helm:
            return str(helm.test(NAME, timeout=int(TIMEOUT_S), logs=True)["logs"])

    def uninstall(self) -> None:
        with self._helm() as helm:
            helm.uninstall(NAME, wait=self._wait, timeout=int(TIMEOUT_S), ignore_not_found=True)

    def _helm(self) -> helm_python.Config:
        return helm_python.Config(namespace=self.namespace)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def pods(self, part: str) -> list[Object]:
        """Those that are not on their way out."""
        found = self.cluster.get(
            "pods", "-n", self.namespace, "-l", f"app.kubernetes.io/component={part}"
        )
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def secrets(self) -> dict[str, Any]:
        found = self.cluster.get("secrets", "-n", self.namespace, "-l", "helm.sh/chart")
        return {each["metadata"]["name"]: each["data"] for each in found}

    def remains(self) -> list[str]:
        """Kinds and names of what is there, the history of the release included."""
        kinds = (
            "deployments,statefulsets,pods,services,configmaps,secrets,serviceaccounts,roles,"
            "rolebindings,networkpolicies,poddisruptionbudgets,persistentvolumeclaims,"
            "endpointslices,horizontalpodautoscalers,controllerrevisions,replicasets"
        )
        found = self.cluster.get(kinds, "-n", self.namespace)
        names = [f"{each['kind']} {each['metadata']['name']}" for each in found]
        return [each for each in names if each not in OF_EVERY_NAMESPACE]

    def roll(self, *sets: str) -> None:
        """New pods of all these, and wait for them."""
        for each in sets:
            self.kubectl("rollout", "restart", each)
        self.rolled(*sets)

    def rolled(self, *sets: str) -> None:
        """Wait until all their pods are as they should be."""
        for each in sets:
            self.kubectl("rollout", "status", each, f"--timeout={TIMEOUT_S:.0f}s")

    def scale(self, of: str, count: int) -> None:
        """So many pods, and wait for those that come and for those that go."""
        self.kubectl("scale", of, f"--replicas={count}")
        self.rolled(of)
        part = of.rpartition("-")[2]
        selector = f"app.kubernetes.io/component={part}"
        self.cluster.wait_for(
            f"{count} pods of {of}",
            lambda: len(self.cluster.get("pods", "-n", self.namespace, "-l", selector)) == count,
        )

    def metrics(self, pod: str, port: int) -> str:
        """The metrics page of a pod, read within it."""
        page = f"urlopen('http://127.0.0.1:{port}/metrics').read().decode()"
        read = f"from urllib.request import urlopen; print({page})"
        return self.kubectl("exec", pod, "--", "python3", "-c", read)

    def audits(self) -> list[list[Object]]:
        """What every router says of its mirrors."""
        command = "prefixlb", "audit", "--json", *self._flags
        said = [
            self.cluster.kubectl(
                *("-n", self.namespace, "exec", pod["metadata"]["name"], "--", *command),
                check=False,
            )
            for pod in self.pods("router")
        ]
        return [[json.loads(line) for line in each.splitlines()] for each in said]

    def audited(self) -> bool:
        """Whether every router mirrors every replica, and each mirror equals its replica's tree."""
        replicas = {each["metadata"]["name"] for each in self.pods("replica")}
        found = self.audits()
        return bool(found) and all(
            {each["replica_id"] for each in told if each["outcome"] == "equal"} == replicas
            for told in found
        )

    def settle(self) -> None:
        """Wait until every mirror equals its tree: at most 10 s, and what the audits take."""
        self.cluster.wait_for("every mirror equals its tree", self.audited, timeout_s=30)
