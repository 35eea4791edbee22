"""deploy/compose.yaml and deploy/Dockerfile, as far as they can be read without Docker."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from replica.settings import ReplicaSettings
from router.settings import RouterSettings
from tests.chart import CHART, ROOT
from tests.ports import free_port
from tests.prometheus import promtool
from tests.redis_process import redis_server

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
VALUES: Any = yaml.safe_load((CHART / "values.yaml").read_text())
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


MOUNTED = {
    name: {
        target: DEPLOY / source
        for source, target, _ in (each.split(":") for each in service.get("volumes", []))
    }
    for name, service in COMPOSE["services"].items()
}
"""Folders of each service, and where they come from."""


def test_the_services_are_a_cluster_and_what_watches_it() -> None:
    replicas = {"replica-0", "replica-1"}
    assert set(COMPOSE["services"]) == {"redis", *replicas, "router", "prometheus", "grafana"}


def test_what_services_mount_and_read_is_there() -> None:
    assert MOUNTED["prometheus"] and MOUNTED["grafana"]
    for name, service in COMPOSE["services"].items():
        for path in MOUNTED[name].values():
            assert any(path.iterdir()), path
        for each in service.get("configs", []):
            assert each["source"] in COMPOSE["configs"], name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_prometheus_takes_its_configuration_and_scrapes_the_metrics_of_every_process(
    tmp_path: Path,
) -> None:
    text = COMPOSE["configs"]["prometheus"]["content"]
    ((target, source),) = MOUNTED["prometheus"].items()
    assert f"rule_files: [{target}/*.yaml]" in text
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace(target, str(source)))
    promtool("check", "config", file)
    ports = {
        "router": RouterSettings.model_fields["metrics_port"].default,
        "replica": ReplicaSettings.model_fields["metrics_port"].default,
    }
    jobs = {
        each["job_name"]: each["static_configs"] for each in yaml.safe_load(text)["scrape_configs"]
    }
    assert jobs == {
        part: [
            {"targets": [f"{name}:{port}" for name in COMPOSE["services"] if name.startswith(part)]}
        ]
        for part, port in ports.items()
    }


def test_grafana_is_led_to_prometheus_and_to_the_dashboards() -> None:
    (source,) = yaml.safe_load(COMPOSE["configs"]["datasource"]["content"])["datasources"]
    (port,) = COMPOSE["services"]["prometheus"]["ports"]
    assert source["type"] == "prometheus"
    assert source["url"] == f"http://prometheus:{port.rpartition(':')[2]}"
    (provider,) = yaml.safe_load(COMPOSE["configs"]["dashboards"]["content"])["providers"]
    assert list(MOUNTED["grafana"]) == [provider["options"]["path"]]


def test_services_are_given_settings_that_there_are() -> None:
    kinds = {"ROUTER_": RouterSettings, "REPLICA_": ReplicaSettings}
    checked = 0
    for service in COMPOSE["services"].values():
        for variable in service.get("environment", {}):
            for prefix, kind in kinds.items():
                if variable.startswith(prefix):
                    assert variable.removeprefix(prefix).lower() in kind.model_fields, variable
                    checked += 1
    assert checked >= 10


def test_services_are_built_from_stages_that_there_are() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    assert {"router", "replica-cpu", "replica-cuda", "replica-trial"} <= stages
    for service in COMPOSE["services"].values():
        if "build" in service:
            assert service["build"]["target"] in stages
            assert VERSION in service["image"]


def test_an_image_is_built_by_one_service_and_pulled_by_none() -> None:
    services = COMPOSE["services"].values()
    built = [service["image"] for service in services if "build" in service]
    assert built and len(built) == len(set(built))
    for service in services:
        if service["image"].startswith("prefixlb-") and "build" not in service:
            assert service["image"] in built and service["pull_policy"] == "never"


@pytest.mark.redis
def test_redis_answers_other_machines_than_its_own() -> None:
    program, *flags = COMPOSE["services"]["redis"]["command"]
    assert program == "redis-server"
    port = free_port()
    # Without `bind`, as in a container. Redis 6.2 takes all but 127.0.0.1 for another machine.
    with (
        redis_server(port, flags, conf=""),
        socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.2", 0)) as connection,
    ):
        connection.sendall(b"PING\r\n")
        assert connection.recv(64) == b"+PONG\r\n"


def test_services_end_after_their_processes_have_drained() -> None:
    for name in ("router", "replica-0", "replica-1"):
        kind = RouterSettings if name == "router" else ReplicaSettings
        grace_s = int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s"))
        assert grace_s > kind.model_fields["drain_timeout_s"].default


def test_images_run_as_the_user_of_the_chart_and_hold_packages_by_their_hashes() -> None:
    assert f"USER {VALUES['runAsUser']}:{VALUES['runAsGroup']}\n" in DOCKERFILE
    installs = re.findall(r"(?:uv )?pip install [^\n;]*", DOCKERFILE)
    assert len(installs) >= 6
    for install in installs:
        # Our own, the one whose hash is in no lock, and pip for a stage of which one file is kept.
        known = "/wheels/", "torch==$version+cpu", "install pip "
        assert "--require-hashes" in install or any(each in install for each in known), install


def test_the_chart_has_the_version_of_the_product() -> None:
    product = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert product is not None and product[1] == VERSION
