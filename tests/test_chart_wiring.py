"""The chart: what values become, and that what one object names is there in another."""

from functools import reduce
from typing import Any

import pytest
import yaml

from tests.chart import (
    CHART,
    VALUE_SETS,
    Object,
    component,
    environment,
    example,
    of_kind,
    pods,
    render,
)
from tests.test_chart import every_set

ROUTER, REPLICA = "Deployment llm-prefixlb-router", "StatefulSet llm-prefixlb-replica"
IN_POD = "spec template spec"
IN_ROUTER = f"{IN_POD} containers router"
IN_REPLICA = f"{IN_POD} containers replica"

ON_GPUS = {"replica": {"gpu": {"enabled": True}}}
CLAIM = {"persistentVolumeClaim": {"claimName": "models"}}
MODELS = {"replica": {"model": {"volume": CLAIM}}}
HPA = {"replica": {"autoscaling": {"kind": "hpa", "waitingRequests": 5}}}
OWN_REDIS = {
    "redis": {"enabled": False, "existing": {"secretName": "ours", "secretKey": "where"}},
}
URL_OF_OURS = {"name": "ours", "key": "where"}
ALL_TLS = VALUE_SETS["ipv6 and client certificates"]

BECOME: list[tuple[Object, str, str, Any]] = [
    ({"router": {"preStopSeconds": 7}}, ROUTER, f"{IN_ROUTER} lifecycle preStop sleep seconds", 7),
    (
        {"router": {"preStopSeconds": 7, "drainSeconds": 60}},
        ROUTER,
        f"{IN_POD} terminationGracePeriodSeconds",
        77,
    ),
    (ON_GPUS, REPLICA, f"{IN_REPLICA} resources limits nvidia.com/gpu", 1),
    (ON_GPUS, REPLICA, f"{IN_REPLICA} resources limits memory", "8Gi"),
    (ON_GPUS, REPLICA, f"{IN_REPLICA} env REPLICA_DEVICE value", "cuda"),
    ({}, REPLICA, f"{IN_REPLICA} env REPLICA_DEVICE value", "cpu"),
    (MODELS, REPLICA, f"{IN_REPLICA} env REPLICA_MODEL value", "/models/model.gguf"),
    (MODELS, REPLICA, f"{IN_REPLICA} volumeMounts models mountPath", "/models"),
    (MODELS, REPLICA, f"{IN_POD} volumes models", {"name": "models", **CLAIM}),
    (OWN_REDIS, ROUTER, f"{IN_ROUTER} env ROUTER_REDIS_URL valueFrom secretKeyRef", URL_OF_OURS),
    (OWN_REDIS, REPLICA, f"{IN_REPLICA} env REPLICA_REDIS_URL valueFrom secretKeyRef", URL_OF_OURS),
    (
        HPA,
        "HorizontalPodAutoscaler llm-prefixlb-replica",
        "spec metrics",
        [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "prefixlb_replica_waiting_requests"},
                    "target": {"type": "AverageValue", "averageValue": "5"},
                },
            }
        ],
    ),
    (ALL_TLS, ROUTER, f"{IN_POD} volumes tls secret secretName", "tls"),
    (ALL_TLS, ROUTER, f"{IN_POD} volumes replica-tls secret secretName", "router-tls"),
    (ALL_TLS, REPLICA, f"{IN_POD} volumes tls secret secretName", "replica-tls"),
    *(
        (ALL_TLS, ROUTER, f"{IN_ROUTER} env {variable} value", f"/etc/prefixlb/{file}")
        for variable, file in {
            "ROUTER_TLS_CERT": "tls/tls.crt",
            "ROUTER_TLS_KEY": "tls/tls.key",
            "ROUTER_TLS_CLIENT_CA": "tls/ca.crt",
            "ROUTER_REPLICA_TLS_CA": "replica-tls/ca.crt",
            "ROUTER_REPLICA_TLS_CERT": "replica-tls/tls.crt",
            "ROUTER_REPLICA_TLS_KEY": "replica-tls/tls.key",
        }.items()
    ),
    (
        ALL_TLS,
        ROUTER,
        f"{IN_ROUTER} env ROUTER_REPLICA_TLS_SERVER_NAME value",
        "llm-prefixlb-replica",
    ),
]
"""Values, an object that they make, a path in it, and what is there. A path leads into lists by
position or name."""


@pytest.mark.parametrize(
    ("values", "of", "path", "expected"),
    BECOME,
    ids=[f"{of.split('-')[-1]} {path.removeprefix(IN_POD)}" for _, of, path, _ in BECOME],
)
def test_values_become(values: Object, of: str, path: str, expected: Any) -> None:
    kind, name = of.split()
    assert reduce(_step, path.split(), of_kind(render(values), kind)[name]) == expected


def _step(at: Any, key: str) -> Any:
    if isinstance(at, dict):
        return at[key]
    (found,) = [each for each in at if each["name"] == key]
    return found


@every_set
def test_files_that_processes_are_told_of_are_mounted(values: Object) -> None:
    """Each in a volume of the pod, which has a file of that name if it says what it has."""
    for name, pod in pods(render(values)):
        (container,) = pod["spec"]["containers"]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        mounts = container.get("volumeMounts", [])
        # One of a claim for each replica is in the StatefulSet.
        mounted = {each["mountPath"]: volumes.get(each["name"], {}) for each in mounts}
        for variable, value in environment(pod).items() if "env" in container else ():
            if value is None or not value.startswith("/etc/"):
                continue
            directory, _, file = value.rpartition("/")
            items = mounted[directory].get("secret", {}).get("items", [{"path": file}])
            assert file in [each["path"] for each in items], (name, variable)


@every_set
def test_pods_are_spread_by_their_own_number(values: Object) -> None:
    spread = 0
    for name, pod in pods(render(values)):
        for each in pod["spec"].get("topologySpreadConstraints", []):
            wanted = each["labelSelector"]["matchLabels"]
            assert wanted.items() <= pod["metadata"]["labels"].items(), name
            assert wanted["app.kubernetes.io/component"] == component(pod), name
            spread += 1
    assert spread >= 2


def test_a_pod_monitor_reads_a_port_of_the_pods_that_it_is_for() -> None:
    objects = render(example("many-nodes"))
    monitors = of_kind(objects, "PodMonitor").values()
    assert {component(each) for each in monitors} == {"router", "replica"}
    for each in monitors:
        wanted = each["spec"]["selector"]["matchLabels"].items()
        (pod,) = [pod for _, pod in pods(objects) if wanted <= pod["metadata"]["labels"].items()]
        assert component(pod) == component(each)
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        (endpoint,) = each["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")
        assert endpoint["port"] in ports


def test_rules_are_those_of_the_files() -> None:
    rules = of_kind(render(example("many-nodes")), "PrometheusRule")
    files = {path.stem: path for path in (CHART / "alerts").glob("*.yaml")}
    assert set(rules) == {f"llm-prefixlb-{stem}" for stem in files}
    for stem, path in files.items():
        expected = yaml.safe_load(path.read_text())
        assert expected["groups"] and rules[f"llm-prefixlb-{stem}"]["spec"] == expected
