"""The chart on a cluster, with the small model: two routers, three replicas, Redis."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import helm_python
import yaml

from tests.chart import CHART, Object, example
from tests.kube.cluster import TIMEOUT_S, Cluster

NAME = "llm"
FULLNAME = "llm-prefixlb"

_VALUES: Any = yaml.safe_load((CHART / "values.yaml").read_text())
_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
_REDIS = _VALUES["redis"]["image"]

ROUTER_IMAGE = f"prefixlb-router:{_VERSION}"
REPLICA_IMAGE = f"prefixlb-replica:{_VERSION}-trial"
REDIS_IMAGE = f"{_REDIS['repository']}:{_REDIS['tag']}"

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
        self, cluster: Cluster, *, namespace: str, monitoring: str = "monitoring", runs: bool = True
    ) -> None:
        """`runs`: whether there are nodes for its pods, so that it can be waited for."""
        self._wait = "watcher" if runs else None
        self.cluster = cluster
        self.namespace = namespace
        self.monitoring = monitoring
        self.install_s = 0.0

    def values(self, **router_settings: Any) -> Object:
        values = example("cpu-trial")
        values["router"]["replicas"] = 2
        values["router"]["settings"] |= router_settings
        values["router"]["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
        values["replica"]["replicas"] = int(os.environ.get("PREFIXLB_TEST_REPLICAS", "3"))
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
        return values

    def install(self) -> None:
        began_s = time.monotonic()
        with self._helm() as helm:
            helm.install(CHART, NAME, self.values(), wait=self._wait, timeout=int(TIMEOUT_S))
        self.install_s = time.monotonic() - began_s

    def upgrade(self, values: Object) -> None:
        with self._helm() as helm:
            helm.upgrade(CHART, NAME, values, wait=self._wait, timeout=int(TIMEOUT_S))

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
        for each in sets:
            self.kubectl("rollout", "status", each, f"--timeout={TIMEOUT_S:.0f}s")

    def audited(self) -> bool:
        """Whether every router mirrors every replica, and each mirror equals its replica's tree."""
        replicas = {each["metadata"]["name"] for each in self.pods("replica")}
        for pod in self.pods("router"):
            said = self.cluster.kubectl(
                *("-n", self.namespace, "exec", pod["metadata"]["name"], "--"),
                *("prefixlb", "audit", "--json"),
                check=False,
            )
            told = [json.loads(line) for line in said.splitlines()]
            if {each["replica_id"] for each in told if each["outcome"] == "equal"} != replicas:
                return False
        return True
