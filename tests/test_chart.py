"""The chart: what it renders is valid, hardened, and in line with the processes."""

import asyncio
import random
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import helm_python
import kubernetes_validate
import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User

import replica.server
from proto.tracing import ALL_IDS, Sampling, Tracing, read_tracing
from replica.settings import ReplicaSettings
from router import health
from router.discovery.endpoint_slices import EndpointSlices
from router.reload import CHANGEABLE
from router.settings import RouterSettings
from tests.chart import (
    CHART,
    NAMESPACE,
    RELEASE,
    VALUE_SETS,
    Object,
    component,
    environment,
    example,
    notes,
    of_kind,
    pods,
    render,
)
from tests.fake_apiserver import fake_apiserver
from tests.live_router import until

_NEEDED = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
OLDEST = _NEEDED.removeprefix(">=").removesuffix(".0-0")
KUBERNETES_VERSIONS = ("1.37", "1.36", "1.35", OLDEST)


CUSTOM = {
    "cert-manager.io/v1": {"Certificate", "Issuer"},
    "keda.sh/v1alpha1": {"ScaledObject"},
    "monitoring.coreos.com/v1": {"PodMonitor", "PrometheusRule"},
}
"""What Kubernetes itself has no schema of."""

WARNING = 2

every_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())


@every_set
def test_helm_lint_has_nothing_to_say(values: Object) -> None:
    report = helm_python.lint(CHART, values, strict=True, namespace=NAMESPACE)
    told = [each for each in report["messages"] if each["severity"] >= WARNING]
    assert (report["total_charts_linted"], told, report["errors"]) == (1, [], [])


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_object_is_one_of_kubernetes(version: str) -> None:
    by_kind: dict[tuple[str, str], list[Object]] = {}
    for values in VALUE_SETS.values():
        for each in render(values):
            if each["kind"] not in CUSTOM.get(each["apiVersion"], ()):
                by_kind.setdefault((each["apiVersion"], each["kind"]), []).append(each)
    assert len(by_kind) >= 12
    for (api, kind), objects in by_kind.items():
        # All of a kind at once: reading the schemas takes longer than what they are read for.
        listed = {"apiVersion": api, "kind": f"{kind}List", "metadata": {}, "items": objects}
        try:
            kubernetes_validate.validate(listed, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{kind}: {error.message} at {list(error.path)}")


def test_every_object_has_a_place_of_its_own_and_a_name_that_fits() -> None:
    for values in VALUE_SETS.values():
        objects = render(values, release="a-release-with-the-longest-name-that-helm-will-ever-take")
        places = [(each["kind"], each["metadata"]["name"]) for each in objects]
        assert len(set(places)) == len(places)
        for each in objects:
            assert each["metadata"]["namespace"] == NAMESPACE
            # A pod's name gets up to 11 characters more, and a label holds 63.
            assert len(each["metadata"]["name"]) <= 63
            if each["kind"] in ("Deployment", "StatefulSet"):
                assert len(each["metadata"]["name"]) <= 52


@every_set
def test_every_pod_meets_the_restricted_level_and_never_writes_its_root(values: Object) -> None:
    found = list(pods(render(values)))
    assert len(found) >= 3
    for name, pod in found:
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["securityContext"].get("runAsUser") != 0, name
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert {"requests", "limits"} <= set(container.get("resources", {})) or (
                container in spec.get("initContainers", [])
            ), name


@every_set
def test_only_routers_that_ask_the_apiserver_can(values: Object) -> None:
    asks = values.get("discovery") == "kubernetes"
    objects = render(values)
    for name, pod in pods(objects):
        mounts = pod["spec"]["automountServiceAccountToken"]
        assert mounts is (asks and component(pod) == "router"), name
    assert bool(of_kind(objects, "Role")) is asks


async def test_the_role_allows_what_discovery_asks_and_nothing_else() -> None:
    asked: set[str] = set()
    async with fake_apiserver() as (apiserver, url):
        client = AsyncClient(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="t")))
        slices = EndpointSlices(
            client, service="r", namespace="n", port_name="grpc", rng=random.Random(0)
        )
        following = asyncio.create_task(slices.follow())
        await until(lambda: apiserver.watchers == 1, 4.0, "a watch")
        apiserver.hang_up()  # so that it begins anew
        await until(lambda: apiserver.lists == 2, 8.0, "a second list")
        following.cancel()
        await asyncio.wait([following])
        await client.aclose()
        for target in apiserver.asked:
            path = urlsplit(target)
            assert path.path == "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices"
            asked.add("watch" if "watch" in parse_qs(path.query) else "list")
    (role,) = of_kind(render(example("kubernetes-discovery")), "Role").values()
    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["discovery.k8s.io"], ["endpointslices"])
    assert set(rule["verbs"]) == asked == {"list", "watch"}


SERVED = {
    "router": ({health.LIVENESS, *health.READINESS}, health.PATHS, 30000),
    "replica": ({*replica.server.SERVICES}, replica.server.PATHS, 30001),
}
"""By part: what its health service knows, what its metrics page knows, and its port."""

PROBES = {
    ("router", "startupProbe"): ("liveness", "/livez"),
    ("router", "readinessProbe"): ("readiness", "/readyz"),
    ("router", "livenessProbe"): ("liveness", "/livez"),
    ("replica", "startupProbe"): ("prefixlb.v1.Inference", "/readyz"),
    ("replica", "readinessProbe"): ("prefixlb.v1.Inference", "/readyz"),
    ("replica", "livenessProbe"): ("prefixlb.v1.Replica", "/livez"),
}
"""The service, and the path of whom TLS is spoken with."""


@every_set
def test_probes_ask_what_the_processes_answer(values: Object) -> None:
    tls = values.get("tls", {})
    secured = {"router": "client" in tls, "replica": "replica" in tls}
    for name, pod in pods(render(values)):
        part = component(pod)
        if part not in SERVED:
            continue
        services, paths, port = SERVED[part]
        (container,) = pod["spec"]["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe, (service, path) = container[kind], PROBES[part, kind]
            assert service in services and path in paths
            if secured[part]:
                # Kubernetes' gRPC probes speak no TLS.
                assert probe["httpGet"] == {"port": "metrics", "path": path}, name
            else:
                assert probe["grpc"] == {"port": port, "service": service}, name
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["grpc"] == port


@every_set
def test_pods_have_the_time_that_their_processes_take_to_drain(values: Object) -> None:
    for name, pod in pods(render(values)):
        part = component(pod)
        if part not in SERVED:
            continue
        (container,) = pod["spec"]["containers"]
        stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {"seconds": 0})
        drain_s = int(environment(pod)[f"{part.upper()}_DRAIN_TIMEOUT_S"] or 0)
        grace_s = pod["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= stop["seconds"] + drain_s + 5, name


OF_THE_POD = {"POD_IP", "POD_NAME", "NODE_NAME"}
"""Variables that others are made of."""

FROM_ELSEWHERE = {
    "ROUTER_REDIS_URL": "redis://redis",
    "REPLICA_REDIS_URL": "redis://redis",
    "REPLICA_REPLICA_ID": "llm-prefixlb-replica-0",
}


@every_set
def test_processes_take_the_settings_that_pods_give_them(
    values: Object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = render(values)
    kinds = {"router": RouterSettings, "replica": ReplicaSettings}
    for name, pod in pods(objects):
        if component(pod) not in kinds:
            continue
        kind = kinds[component(pod)]
        prefix = f"{component(pod).upper()}_"
        given = environment(pod)
        assert {each for each, value in given.items() if value is None} <= {
            *FROM_ELSEWHERE,
            *OF_THE_POD,
        }, name
        with monkeypatch.context() as context:
            for variable, value in given.items():
                if variable in OF_THE_POD or variable.startswith("OTEL_"):
                    continue
                setting = variable.removeprefix(prefix).lower()
                assert variable.startswith(prefix) and setting in kind.model_fields, variable
                text = FROM_ELSEWHERE[variable] if value is None else value
                context.setenv(variable, text.replace("$(POD_IP)", "10.0.0.1"))
            if component(pod) == "router":
                config = of_kind(objects, "ConfigMap")["llm-prefixlb-router"]
                path = tmp_path / "router.toml"
                path.write_text(config["data"]["router.toml"])
                context.setenv("ROUTER_SETTINGS_FILE", str(path))
            settings = kind()
        for setting, value in values.get(component(pod), {}).get("settings", {}).items():
            assert getattr(settings, setting) == value, setting


def test_with_a_collector_both_parts_trace_as_many_requests_and_name_their_pods() -> None:
    endpoint = "http://collector.observability.svc:4317"
    for values in ({}, {"tracing": {"endpoint": endpoint, "ratio": 0.25}}):
        for name, pod in pods(render(values)):
            if component(pod) not in SERVED:
                continue
            given = environment(pod)
            of_traces = {each: value for each, value in given.items() if "OTEL" in each}
            if not values:
                assert not of_traces and "NODE_NAME" not in given, name
                continue
            found = read_tracing(
                str(given[f"{component(pod).upper()}_OTLP_TRACES_ENDPOINT"]),
                {each: str(value) for each, value in of_traces.items()},
            )
            assert found == Tracing(endpoint, Sampling(True, ALL_IDS // 4)), name
            named = str(of_traces["OTEL_RESOURCE_ATTRIBUTES"])
            assert named == (
                f"k8s.namespace.name={NAMESPACE},k8s.pod.name=$(POD_NAME),"
                "k8s.node.name=$(NODE_NAME)"
            ), name
            # A variable can be made of those before it alone.
            names = list(given)
            assert names.index("POD_NAME") < names.index("OTEL_RESOURCE_ATTRIBUTES"), name


GIVEN_BY_THE_CHART = {
    "router": {
        *("settings_file", "host", "port", "metrics_host", "metrics_port", "redis_url", "cluster"),
        *("hash_secret_file", "discovery", "static_replicas", "kubernetes_service"),
        *("kubernetes_port", "tls_cert", "tls_key", "tls_client_ca", "auth_token_file"),
        *("admin_token_file", "ui_token_file", "replica_tls_ca", "replica_tls_server_name"),
        *("replica_tls_cert", "replica_tls_key", "drain_timeout_s", "otlp_traces_endpoint"),
    },
    "replica": {
        *("model", "replica_id", "host", "port", "advertise_address", "metrics_host"),
        *("metrics_port", "redis_url", "cluster", "hash_secret_file", "tls_cert", "tls_key"),
        *("tls_client_ca", "device", "drain_timeout_s", "otlp_traces_endpoint"),
    },
}


def schema() -> Any:
    with helm_python.Chart.load(CHART) as chart:
        return chart.schema


@pytest.mark.parametrize("part", ["router", "replica"])
def test_values_take_every_setting_that_the_chart_does_not_give(part: str) -> None:
    kind = {"router": RouterSettings, "replica": ReplicaSettings}[part]
    taken = set(schema()["properties"][part]["properties"]["settings"]["properties"])
    assert taken == set(kind.model_fields) - GIVEN_BY_THE_CHART[part]


def test_settings_that_change_without_a_restart_are_in_the_file_and_no_others_are() -> None:
    settings: Object = {
        name: RouterSettings.model_fields[name].default
        for name in set(RouterSettings.model_fields) - GIVEN_BY_THE_CHART["router"]
    }
    objects = render({"router": {"settings": settings}})
    toml = of_kind(objects, "ConfigMap")["llm-prefixlb-router"]["data"]["router.toml"]
    assert set(tomllib.loads(toml)) == CHANGEABLE
    (router,) = (pod for _, pod in pods(objects) if component(pod) == "router")
    rest = {f"ROUTER_{name.upper()}" for name in set(settings) - CHANGEABLE}
    assert rest <= set(environment(router))


def test_large_numbers_are_written_as_numbers() -> None:
    objects = render({"router": {"settings": {"index_max_bytes": 2**34, "max_inflight": 2**22}}})
    (router,) = (pod for _, pod in pods(objects) if component(pod) == "router")
    assert environment(router)["ROUTER_INDEX_MAX_BYTES"] == str(2**34)
    toml = of_kind(objects, "ConfigMap")["llm-prefixlb-router"]["data"]["router.toml"]
    assert tomllib.loads(toml) == {"max_inflight": 2**22}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"routr": {}}, "routr"),
        ({"router": {"replcas": 3}}, "replcas"),
        ({"router": {"settings": {"max_inflght": 3}}}, "max_inflght"),
        ({"replica": {"settings": {"device": "cpu"}}}, "device"),
        ({"router": {"replicas": 0}}, "replicas"),
        ({"discovery": "consul"}, "discovery"),
        ({"runAsUser": 0}, "runAsUser"),
        ({"tracing": {"endpoint": "collector:4317"}}, "endpoint"),
        ({"tracing": {"ratio": 2}}, "ratio"),
        ({"networkPolicy": {"clients": [{"podSelctor": {}}]}}, "podSelctor"),
        ({"redis": {"enabled": False, "existing": {"url": "redis://:secret@host"}}}, "url"),
    ],
)
def test_a_value_that_is_none_is_refused_by_name(values: Object, told: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=told):
        render(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"redis": {"enabled": False}}, "exactly one of redis.enabled.*given: none"),
        ({"redis": {"existing": {"url": "redis://r"}}}, "given: redis.enabled, redis.existing.url"),
        ({"tls": {"client": {"enabled": True}}}, "tls.client.existingSecret or"),
        ({"tls": {"replica": {"enabled": True, "existingSecret": "s"}}}, "existingRouterSecret"),
        ({"tls": {"client": {"requireClientCertificate": True}}}, "needs tls.client.enabled"),
        (
            {"replica": {"model": {"volume": {"emptyDir": {}}, "volumeClaimTemplate": {"a": 1}}}},
            "exclude each other",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_what_to_do(
    values: Object, told: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=told):
        render(values)


def test_what_scales_has_no_number_of_its_own() -> None:
    """Or every upgrade would undo what the autoscaler did."""
    for name in ("many-nodes", "hpa, without policies"):
        objects = render(VALUE_SETS[name])
        scaled = {
            each["spec"]["scaleTargetRef"]["name"]
            for kind in ("HorizontalPodAutoscaler", "ScaledObject")
            for each in of_kind(objects, kind).values()
        }
        sets = of_kind(objects, "Deployment") | of_kind(objects, "StatefulSet")
        assert scaled == {"llm-prefixlb-router", "llm-prefixlb-replica"}
        assert all("replicas" not in sets[each]["spec"] for each in scaled)


@every_set
def test_selectors_find_the_pods_they_are_for(values: Object) -> None:
    objects = render(values)
    labels = {component(pod): pod["metadata"]["labels"].items() for _, pod in pods(objects)}
    for kind in ("Service", "PodDisruptionBudget", "Deployment", "StatefulSet"):
        for name, each in of_kind(objects, kind).items():
            selector = each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            found = {part for part, has in labels.items() if wanted <= has}
            assert found == {component(each)}, name


def test_a_new_version_of_the_chart_alone_makes_no_new_pods() -> None:
    """Or each would cost the replicas their caches."""
    for values in VALUE_SETS.values():
        for name, pod in pods(render(values)):
            if not name.startswith("Pod "):
                assert "helm.sh/chart" not in pod["metadata"]["labels"], name


def test_no_password_is_in_a_pod() -> None:
    for name, objects in ((name, render(values)) for name, values in VALUE_SETS.items()):
        secrets = [
            value
            for each in of_kind(objects, "Secret").values()
            for key, value in each.get("stringData", {}).items()
            if key == "password"
        ]
        assert len(secrets) == (name not in ("many-nodes", "many-nodes and tls", "external-redis"))
        for _, pod in pods(objects):
            assert not any(secret in str(pod) for secret in secrets)


def test_the_status_page_is_off_unless_a_secret_has_its_tokens() -> None:
    def router_of(values: Object) -> Object:
        return of_kind(render(values), "Deployment")["llm-prefixlb-router"]["spec"]["template"]

    assert "ROUTER_UI_TOKEN_FILE" not in environment(router_of({}))
    auth = {"uiTokensSecret": "people", "uiTokensKey": "mine"}
    router = router_of({"auth": auth})
    assert environment(router)["ROUTER_UI_TOKEN_FILE"] == "/etc/prefixlb/ui-tokens/tokens"
    (container,) = router["spec"]["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "ui-tokens"]
    assert mount == {
        "name": "ui-tokens",
        "mountPath": "/etc/prefixlb/ui-tokens",
        "readOnly": True,
    }
    (volume,) = [v for v in router["spec"]["volumes"] if v["name"] == "ui-tokens"]
    assert volume["secret"]["secretName"] == "people"
    assert volume["secret"]["items"] == [{"key": "mine", "path": "tokens"}]


def test_dashboards_are_the_files_of_the_chart() -> None:
    objects = render(example("many-nodes"))
    boards = [each for name, each in of_kind(objects, "ConfigMap").items() if "dashboard" in name]
    assert boards and all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in boards)
    for each in boards:
        ((file, text),) = each["data"].items()
        # A ConfigMap keeps no trailing new line.
        assert text == (CHART / "dashboards" / file).read_text().rstrip("\n")


def test_notes_say_how_to_reach_and_watch_what_was_installed() -> None:
    told = notes(VALUE_SETS["ipv6 and client certificates"])
    assert f"{RELEASE}-prefixlb-router.{NAMESPACE}.svc:30000 over TLS" in told
    assert "--token-file /etc/prefixlb/admin-tokens/tokens" in told
    assert "the Secret ui-tokens, is then http://localhost:29000/ui" in told
    assert "/ui" not in notes({})
    assert "Whoever may reach" not in told
    assert "Whoever may reach" in notes({})
