"""Installed, upgraded, rolled back, removed: what an apiserver alone can show, without nodes."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.kube.cluster import Cluster
from tests.kube.release import FULLNAME, Release


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Release]:
    """Its pods may run or not."""
    namespace = f"prefixlb-test-{uuid4().hex[:8]}"
    cluster.namespace(namespace)
    release = Release(cluster, namespace=namespace, runs=False)
    release.install()
    yield release
    cluster.delete_namespace(namespace)


def test_secrets_are_made_once_and_kept(installed: Release) -> None:
    made = installed.secrets()
    assert set(made) == {f"{FULLNAME}-hash", f"{FULLNAME}-redis"}
    installed.upgrade(installed.values(max_inflight=7))
    assert installed.secrets() == made
    installed.rollback()
    assert installed.secrets() == made


@pytest.mark.parametrize("verb", ["get", "list", "watch", "create", "update", "delete"])
def test_routers_may_list_and_watch_endpoint_slices_and_nothing_else(
    installed: Release, verb: str
) -> None:
    account = f"--as=system:serviceaccount:{installed.namespace}:{FULLNAME}-router"

    def may(kind: str, namespace: str) -> bool:
        asked = "auth", "can-i", verb, kind, account, "-n", namespace
        return installed.cluster.kubectl(*asked, check=False).strip() == "yes"

    assert may("endpointslices.discovery.k8s.io", installed.namespace) is (
        verb in ("list", "watch")
    )
    assert not may("endpointslices.discovery.k8s.io", "default")
    assert not may("secrets", installed.namespace)
    assert not may("pods", installed.namespace)


def test_uninstall_leaves_nothing(installed: Release) -> None:
    assert len(installed.remains()) > 20
    installed.uninstall()
    installed.cluster.wait_for("nothing is left", lambda: not installed.remains(), timeout_s=60)
