"""TLS between client, router and replica from Secrets, which are rotated."""

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.authority import Authority, Pair
from tests.kube.cluster import Cluster
from tests.kube.release import FULLNAME, Release
from tests.kube.steady_load import steadily_loaded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENT, ROUTER, REPLICA, ROUTER_TO_REPLICA = "client", "router", "replica", "router-to-replica"
PORTS = {"router": 29000, "replica": 29001}

VALUES = {
    "tls": {
        "client": {"enabled": True, "existingSecret": ROUTER, "requireClientCertificate": True},
        "replica": {
            "enabled": True,
            "existingSecret": REPLICA,
            "existingRouterSecret": ROUTER_TO_REPLICA,
        },
    },
    "tests": {"clientCertificateSecret": CLIENT},
    "replica": {"replicas": 2},
}


class Secrets:
    """Of an authority, in the namespace of a release."""

    def __init__(self, release: Release, directory: Path) -> None:
        self._release = release
        self._authority = Authority(directory)

    def issue(self, expires: datetime) -> None:
        """All, anew."""
        service = f"{FULLNAME}-router.{self._release.namespace}.svc"
        names = {
            CLIENT: CLIENT,
            ROUTER: service,
            REPLICA: f"{FULLNAME}-replica",
            ROUTER_TO_REPLICA: ROUTER,
        }
        for secret, name in names.items():
            self._put(secret, self._authority.issue(secret, name, expires=expires))

    def _put(self, name: str, pair: Pair) -> None:
        files = {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": self._authority.ca}
        self._release.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": name, "namespace": self._release.namespace},
                "data": {
                    key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()
                },
            }
        )


@pytest.fixture(scope="module")
def release(cluster: Cluster, images: None) -> Iterator[Release]:
    """Of a namespace of its own; not yet installed."""
    files = "/etc/prefixlb/tls"
    with cluster.own_namespace("restricted") as namespace:
        flags = [f"--tls-ca={files}/ca.crt", f"--tls-cert={files}/tls.crt"]
        flags += [f"--tls-key={files}/tls.key"]
        flags += [f"--tls-server-name={FULLNAME}-router.{namespace}.svc"]
        yield Release(cluster, namespace=namespace, values=VALUES, flags=flags)


@pytest.fixture(scope="module")
def secrets(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    """With the release, which has them."""
    secrets = Secrets(release, tmp_path_factory.mktemp("authority"))
    secrets.issue(in_days(30))
    release.install()
    return secrets


def in_days(days: int) -> datetime:
    return (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)


def expiries(release: Release, part: str) -> set[float]:
    """When the certificates end that the processes of a part use, by their own metrics."""
    name = f"prefixlb_{part}_certificate_expiry_timestamp_seconds"
    pages = [release.metrics(pod["metadata"]["name"], PORTS[part]) for pod in release.pods(part)]
    assert pages
    return {
        float(value)
        for page in pages
        for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    }


def test_helm_test_gets_an_answer_over_tls(release: Release, secrets: Secrets) -> None:
    assert '"completion_tokens"' in release.test()
    release.settle()


def test_certificates_are_rotated_without_a_failed_request(
    release: Release, secrets: Secrets
) -> None:
    new = in_days(60)
    before = {pod["metadata"]["uid"] for part in PORTS for pod in release.pods(part)}
    with steadily_loaded(release, tls_secret=CLIENT):
        secrets.issue(new)
        # A kubelet looks for changed Secrets about once a minute.
        release.cluster.wait_for(
            "all use the new certificates",
            lambda: all(expiries(release, part) == {new.timestamp()} for part in PORTS),
            timeout_s=240,
        )
    assert {pod["metadata"]["uid"] for part in PORTS for pod in release.pods(part)} == before
    assert '"completion_tokens"' in release.test()
