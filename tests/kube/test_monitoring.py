"""A Prometheus in the cluster, which finds and scrapes the installation by its annotations."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.chart import NAMESPACE, VALUE_SETS, of_kind, render
from tests.kube.cluster import ApiProxy
from tests.kube.release import PROMETHEUS_IMAGE, Release, restricted_pod
from tests.kube.steady_load import loaded
from tests.prometheus import RULES, Prometheus
from tests.rules import ALERTS, ALL, RECORDED, left_side, metrics_in, panel_exprs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "prometheus"
OF_OTHER_FLEETS = {"prefixlb_router_replica_refused", "prefixlb_router_certificate_expiry"}
"""What has no value in this one, which speaks no TLS and refuses no replica:
tests/test_rules_on_a_fleet.py sees those.
"""


def config(namespace: str) -> str:
    """As Prometheus's own example for pods, and as its operator labels them."""
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io_"
    labels = {
        "__meta_kubernetes_namespace": "namespace",
        "__meta_kubernetes_pod_name": "pod",
        "__meta_kubernetes_pod_label_app_kubernetes_io_component": "job",
    }
    relabelled = [
        {"source_labels": [f"{annotation}scrape"], "action": "keep", "regex": "true"},
        # One target of each pod, whose ports are several.
        {
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "action": "keep",
            "regex": "metrics",
        },
        {"source_labels": [f"{annotation}path"], "target_label": "__metrics_path__"},
        {
            "source_labels": ["__meta_kubernetes_pod_ip", f"{annotation}port"],
            "separator": ":",
            "target_label": "__address__",
        },
        *({"source_labels": [known], "target_label": label} for known, label in labels.items()),
    ]
    pods = {
        "job_name": "pods",
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
        "relabel_configs": relabelled,
    }
    every = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    rules = [f"/etc/prometheus/{file.name}" for file in RULES]
    return yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": [pods]})


@dataclass(frozen=True)
class Watched:
    release: Release
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(release: Release) -> Iterator[Watched]:
    """The release, under load, and a Prometheus that reads its pods."""
    cluster, namespace = release.cluster, release.monitoring
    cluster.load_images(PROMETHEUS_IMAGE)
    group = "rbac.authorization.k8s.io"
    metadata = {"name": NAME, "namespace": release.namespace}
    reads = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    files = {"prometheus.yml": config(release.namespace)}
    files |= {file.name: file.read_text() for file in RULES}
    cluster.apply(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [reads]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": NAME},
            "subjects": [account],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace},
            "data": files,
        },
        restricted_pod(
            NAME,
            namespace,
            volumes=[
                {"name": "config", "configMap": {"name": NAME}},
                {"name": "data", "emptyDir": {}},
            ],
            image=PROMETHEUS_IMAGE,
            command=[
                "prometheus",
                "--config.file=/etc/prometheus/prometheus.yml",
                "--storage.tsdb.path=/data",
            ],
            volumeMounts=[
                {"name": "config", "mountPath": "/etc/prometheus"},
                {"name": "data", "mountPath": "/data"},
            ],
            readinessProbe={"httpGet": {"port": 9090, "path": "/-/ready"}, "periodSeconds": 1},
        ),
    )
    cluster.kubectl(
        *("-n", namespace, "wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
    )
    with loaded(release), ApiProxy() as proxy:
        path = f"api/v1/namespaces/{namespace}/pods/{NAME}:9090/proxy"
        yield Watched(release, Prometheus(f"{proxy.url}/{path}"))
    cluster.kubectl("-n", namespace, "delete", f"pod/{NAME}", f"configmap/{NAME}", "--wait=false")
    release.kubectl("delete", f"role/{NAME}", f"rolebinding/{NAME}")


def test_every_router_and_replica_is_found_and_scraped(watched: Watched) -> None:
    release = watched.release
    expected = {
        pod["metadata"]["name"] for part in ("router", "replica") for pod in release.pods(part)
    }

    def up() -> set[str]:
        found = watched.prometheus.query("up")
        assert {each["metric"]["namespace"] for each in found} <= {release.namespace}
        return {each["metric"]["pod"] for each in found if float(each["value"][1]) == 1}

    release.cluster.wait_for("all are scraped", lambda: up() == expected, timeout_s=30)


def test_every_rule_alert_and_panel_has_data(watched: Watched) -> None:
    exprs = {*RECORDED, *(left_side(alert["expr"]) for alert in ALERTS.values()), *panel_exprs()}
    exprs = {
        each
        for each in exprs
        if not any(name.startswith(tuple(OF_OTHER_FLEETS)) for name in metrics_in(each))
    }
    missing: set[str] = set()

    def all_have_data() -> bool:
        missing.clear()
        missing.update(each for each in exprs if not watched.prometheus.query(each))
        return not missing

    try:
        watched.release.cluster.wait_for("all have data", all_have_data, timeout_s=90)
    finally:
        print(*missing, sep="\n")
    rules = watched.prometheus.rules()
    assert len(rules) == len(ALL)
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_nothing_is_wrong_with_what_was_installed(watched: Watched) -> None:
    active = {
        rule["name"]: rule["alerts"]
        for rule in watched.prometheus.rules()
        if rule["type"] == "alerting" and rule["alerts"]
    }
    assert active == {}


def test_what_keda_scales_by_has_a_value(watched: Watched) -> None:
    (scaled,) = of_kind(render(VALUE_SETS["many-nodes"]), "ScaledObject").values()
    for trigger in scaled["spec"]["triggers"]:
        query = trigger["metadata"]["query"].replace(
            f'namespace="{NAMESPACE}"', f'namespace="{watched.release.namespace}"'
        )
        assert watched.release.namespace in query
        assert len(watched.prometheus.query(query)) == 1, query
