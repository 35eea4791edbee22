"""The chart, rendered as Helm does it, and what of it a test looks for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "prefixlb"
EXAMPLES = CHART / "examples"

Object = dict[str, Any]

RELEASE, NAMESPACE = "llm", "serving"


def example(*names: str) -> Object:
    """The values of examples, the last first."""
    values: Object = {}
    for name in names:
        merge(values, yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))
    return values


def merge(into: Object, values: Mapping[str, Any]) -> None:
    """As Helm merges sets of values: the last one wins, key by key."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


ISSUER = {"name": "internal", "kind": "ClusterIssuer"}

VALUE_SETS: dict[str, Object] = {
    "defaults": {},
    **{path.stem: example(path.stem) for path in sorted(EXAMPLES.glob("*.yaml"))},
    "many-nodes and tls": example("many-nodes", "tls"),
    "openshift, traced": {
        "runAsUser": None,
        "runAsGroup": None,
        "networkPolicy": {"dns": {"ports": [5353]}},
        "tracing": {"endpoint": "http://collector.observability.svc:4317", "ratio": 0.1},
    },
    "ipv6 and client certificates": {
        "ipFamily": "IPv6",
        "discovery": "kubernetes",
        "tls": {
            "client": {"enabled": True, "existingSecret": "tls", "requireClientCertificate": True},
            "replica": {
                "enabled": True,
                "existingSecret": "replica-tls",
                "existingRouterSecret": "router-tls",
            },
        },
        "auth": {
            "tokensSecret": "tokens",
            "adminTokensSecret": "admin-tokens",
            "uiTokensSecret": "ui-tokens",
        },
    },
    "hpa, without policies": {
        "replica": {"autoscaling": {"kind": "hpa"}},
        "router": {"autoscaling": {"enabled": True}},
        "networkPolicy": {"enabled": False},
        "monitoring": {"scrapeAnnotations": True},
    },
}
"""What people install: the examples, and what they leave out."""


def render(values: Object, *, release: str = RELEASE) -> list[Object]:
    """Every object. Raises HelmValuesError or HelmRenderError."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=release, namespace=NAMESPACE)
    return [
        each
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each
    ]


def notes(values: Object) -> str:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(values, name=RELEASE, namespace=NAMESPACE)[
            "prefixlb/templates/NOTES.txt"
        ]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """By name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name, and metadata and spec, of everything that becomes a pod."""
    for each in objects:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]


def component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def environment(pod: Object) -> dict[str, str | None]:
    """Variables of its container; None for one that comes from elsewhere."""
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}
