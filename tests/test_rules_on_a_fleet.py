"""Rules, alerts and dashboard under a real Prometheus that scrapes real processes."""

import re
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from proto.client import Client
from router.cli.child import Child
from router.cli.cluster import LocalCluster
from tests.authority import Authority
from tests.ports import free_port
from tests.prometheus import CHART, NAMESPACE, Prometheus, prometheus, promtool
from tests.replica_process import ReplicaProcess
from tests.rules import (
    ALERTS,
    ALL,
    PANELS,
    RECORDED,
    VARIABLES,
    left_side,
    metrics_in,
    panel_exprs,
)
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(240)]

DEPLOY = CHART.parent.parent


@dataclass(frozen=True)
class Watched:
    """A fleet with work to do, and whoever scrapes it."""

    pages: dict[str, str]
    prometheus: Prometheus
    lonely: str
    """Where the page is of a router whose apiserver is away."""

    def samples(self) -> set[str]:
        """Names of what has a value on some page."""
        lines = "\n".join(self.pages.values()).splitlines()
        return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in lines if line and line[0] != "#"}

    def explained(self) -> set[str]:
        """Names of what has a help text on some page."""
        text = "\n".join(self.pages.values())
        return set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Two replicas and their router; a replica of another secret, which it refuses; and a router
    over TLS that finds neither replicas nor the collector of its traces.
    """
    directory = tmp_path_factory.mktemp("watched")
    tiny = directory / "tiny"
    write_tiny_model(tiny)
    with ExitStack() as ends:
        cluster = LocalCluster(model=tiny, state_dir=directory, replica_flags=("--slots", "1024"))
        ends.enter_context(cluster)
        (directory / "other-secret").write_text("00" * 32)
        (directory / "other-secret").chmod(0o600)
        stranger = ReplicaProcess(
            *(tiny, "--replica-id", "stranger", "--cluster", "local"),
            *("--redis-url", cluster.redis_url),
            *("--hash-secret-file", str(directory / "other-secret")),
        )
        ends.callback(stranger.finish)
        ends.callback(stranger.process.terminate)
        lonely = lonely_router(cluster, directory)
        lonely.start()
        ends.callback(lonely.stop)
        ends.enter_context(work(cluster.router.address))
        routers = [page_of(child) for child in (cluster.router, lonely)]
        replicas = [page_of(child) for child in cluster.replicas]
        replicas.append(f"127.0.0.1:{stranger.metrics_port}")
        jobs = {"routers": routers, "replicas": replicas}
        asked = ends.enter_context(prometheus(directory, jobs))

        def all_is_seen() -> bool:
            up = [float(sample["value"][1]) for sample in asked.query("up")]
            first = (
                "prefixlb:delivered_tokens:ratio_rate30m > 0",
                "prefixlb_router_replica_refused",
            )
            return up == [1.0] * 5 and all(map(asked.query, first))

        eventually(all_is_seen)
        pages = {page: read(page) for page in (*routers, *replicas)}
        yield Watched(pages, asked, page_of(lonely))


def lonely_router(cluster: LocalCluster, directory: Path) -> Child:
    pair = Authority(directory).issue("router")
    config = directory / "kubeconfig"
    config.write_text(
        "current-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{free_port()}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u, namespace: ns}}]\n"
    )
    port, metrics_port = free_port(), free_port()
    return Child(
        "lonely",
        [
            *(sys.executable, "-m", "router", "--port", str(port)),
            *("--metrics-port", str(metrics_port), "--redis-url", cluster.redis_url),
            *("--discovery", "kubernetes", "--kubernetes-service", "llm"),
            *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)),
            *("--otlp-traces-endpoint", f"http://127.0.0.1:{free_port()}"),
        ],
        address=f"127.0.0.1:{port}",
        metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
        log=directory / "lonely.log",
        env={"KUBECONFIG": str(config)},
    )


@contextmanager
def work(router: str) -> Iterator[None]:
    """A client asks one thing after the other in the block, much of it again."""
    ended = threading.Event()

    def ask() -> None:
        with Client(router) as client:
            number = 0
            while not ended.wait(0.05):
                number += 1
                first = number % 4 if number % 3 else number % 200
                client.complete([3 + first, *range(3, 203)], max_tokens=4, timeout_s=30)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def page_of(child: Child) -> str:
    assert child.metrics_url
    return child.metrics_url.removeprefix("http://").removesuffix("/metrics")


def read(page: str) -> str:
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def eventually(holds: Callable[[], object], timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "never held"
        time.sleep(0.2)


def without_data(asked: Prometheus, exprs: set[str], timeout_s: float = 20.0) -> set[str]:
    """Those that still return nothing after so long."""
    deadline_s = time.monotonic() + timeout_s
    while (missing := {e for e in exprs if not asked.query(e)}) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return missing


def test_both_pages_are_clean(watched: Watched) -> None:
    for page in watched.pages.values():
        promtool("check", "metrics", given=page)


def test_all_that_rules_and_panels_name_is_on_a_page(watched: Watched) -> None:
    exprs = [rule["expr"] for rule in ALL]
    exprs += [target["expr"] for panel in PANELS for target in panel["targets"]]
    exprs += [each["query"]["query"] for each in VARIABLES.values() if each["type"] == "query"]
    named = {name for expr in exprs for name in metrics_in(expr)}
    assert named - RECORDED - watched.samples() == set()


def test_all_that_the_documents_name_is_on_a_page(watched: Watched) -> None:
    texts = [(DEPLOY / name).read_text() for name in ("runbook.md", "README.md")]
    named = set(re.findall(r"\bprefixlb_(?:router|replica)_\w+\b", "\n".join(texts)))
    known = watched.explained() | watched.samples()
    assert {name for name in named if f"{name}_total" not in known} - known == set()
    recorded = set(re.findall(r"\bprefixlb(?:_replica)?:[\w:]+", "\n".join(texts)))
    assert recorded <= RECORDED


def test_every_rule_is_evaluated_without_an_error(watched: Watched) -> None:
    eventually(lambda: all(r["health"] != "unknown" for r in watched.prometheus.rules()))
    rules = watched.prometheus.rules()
    assert len(rules) == len(ALL)
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_every_recorded_series_and_left_side_of_an_alert_has_data(watched: Watched) -> None:
    exprs = {*RECORDED, *(left_side(alert["expr"]) for alert in ALERTS.values())}
    assert without_data(watched.prometheus, exprs) == set()


def test_every_panel_has_data(watched: Watched) -> None:
    assert without_data(watched.prometheus, panel_exprs()) == set()


def test_every_variable_offers_what_there_is(watched: Watched) -> None:
    offered = {}
    for name, each in VARIABLES.items():
        if each["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
            assert found
            series = re.sub(r"\$\w+", ".*", found[1])
            offered[name] = set(watched.prometheus.labels(series, found[2]))
    assert offered == {
        "namespace": {NAMESPACE},
        "job": {"routers"},
        "model": {"tiny"},
        "replica": {"replica-0", "replica-1"},
    }


def test_only_what_is_wrong_here_is_an_alert(watched: Watched) -> None:
    """They have to last for minutes before they fire: until then they are pending."""

    def active() -> dict[str, list[str]]:
        rules = [rule for rule in watched.prometheus.rules() if rule["type"] == "alerting"]
        return {
            rule["name"]: sorted(
                each["labels"].get("replica") or each["labels"]["instance"]
                for each in rule["alerts"]
            )
            for rule in rules
            if rule["alerts"]
        }

    expected = {
        "PrefixlbDiscoveryLinkLost": [watched.lonely],
        "PrefixlbNoReplica": [watched.lonely],
        "PrefixlbReplicaRefused": ["stranger"],
    }
    deadline_s = time.monotonic() + 20
    while active() != expected and time.monotonic() < deadline_s:
        time.sleep(0.5)
    assert active() == expected
