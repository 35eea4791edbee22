"""A Prometheus in the cluster, which scrapes what was installed as its annotations say."""

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


def config(release: Release) -> str:
    """Pods by their annotations, with the labels that Prometheus's operator gives them.

    They are looked up here: not every build of Prometheus can ask an apiserver.
    """
    pods = []
    for part in ("router", "replica"):
        for pod in release.pods(part):
            metadata = pod["metadata"]
            said = {
                name.removeprefix("prometheus.io/"): value
                for name, value in metadata["annotations"].items()
            }
            assert said["scrape"] == "true"
            labels = {"namespace": release.namespace, "pod": metadata["name"], "job": part}
            labels["__metrics_path__"] = said["path"]
            target = f"{pod['status']['podIP']}:{said['port']}"
            pods.append({"targets": [target], "labels": labels})
    every = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    return yaml.safe_dump(
        {
            "global": every,
            "rule_files": [f"/etc/prometheus/{file.name}" for file in RULES],
            "scrape_configs": [{"job_name": "pods", "static_configs": pods}],
        }
    )


@dataclass(frozen=True)
class Watched:
    release: Release
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(release: Release) -> Iterator[Watched]:
    """The release, under load, and a Prometheus that reads its pods."""
    cluster, namespace = release.cluster, release.monitoring
    cluster.load_images(PROMETHEUS_IMAGE)
    files = {"prometheus.yml": config(release)}
    files |= {file.name: file.read_text() for file in RULES}
    cluster.apply(
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


def test_every_router_and_replica_is_scraped_as_its_annotations_say(watched: Watched) -> None:
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
