"""Installed, upgraded, rolled back, removed: what an apiserver alone can show, without nodes."""

import asyncio
import random

import pytest

from router.discovery.endpoint_slices import EndpointSlices
from tests.kube.cluster import ApiProxy, Cluster
from tests.kube.release import FULLNAME, PREVIOUS, Release
from tests.live_router import until

ROUTER = f"{FULLNAME}-router"


@pytest.fixture
def uninstalled(cluster: Cluster, namespace: str) -> Release:
    """To be installed; no node takes its routers and replicas."""
    nowhere = {"nodeSelector": {"prefixlb-test": "nowhere"}}
    values = {"router": nowhere, "replica": nowhere}
    return Release(cluster, namespace=namespace, runs=False, values=values)


@pytest.fixture
def installed(uninstalled: Release) -> Release:
    uninstalled.install()
    return uninstalled


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
    account = f"--as=system:serviceaccount:{installed.namespace}:{ROUTER}"

    def may(kind: str, namespace: str) -> bool:
        asked = "auth", "can-i", verb, kind, account, "-n", namespace
        return installed.cluster.kubectl(*asked, check=False).strip() == "yes"

    assert may("endpointslices.discovery.k8s.io", installed.namespace) is (
        verb in ("list", "watch")
    )
    assert not may("endpointslices.discovery.k8s.io", "default")
    assert not may("secrets", installed.namespace)
    assert not may("pods", installed.namespace)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_without_one_of_their_rights_routers_find_nothing_and_say_what_they_need(
    installed: Release, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is needed, and both together are enough."""
    account = f"system:serviceaccount:{installed.namespace}:{ROUTER}"
    with ApiProxy(account) as proxy:
        slices = EndpointSlices(
            proxy.client(),
            service=f"{FULLNAME}-replica",
            namespace=installed.namespace,
            port_name="grpc",
            rng=random.Random(0),
        )
        following = asyncio.create_task(slices.follow())
        try:
            await until(lambda: slices.up is True, 5.0, "the apiserver answers")
            await asyncio.sleep(1.0)
            assert slices.errors == 0
            patch = f'[{{"op": "replace", "path": "/rules/0/verbs", "value": ["{verb}"]}}]'
            installed.kubectl("patch", "role", ROUTER, "--type=json", "-p", patch)
            proxy.cut()
            proxy.restore()
            await until(lambda: slices.errors > 0, 10.0, "it may not")
            assert "service account must list and watch endpointslices" in caplog.text
        finally:
            following.cancel()
            await asyncio.wait([following])
            await slices.close()


def test_an_upgrade_from_the_chart_before_keeps_all_that_counts_and_can_be_rolled_back(
    uninstalled: Release,
) -> None:
    def kept() -> dict[str, object]:
        """What pods, clients and caches depend on."""
        of = uninstalled.cluster.get(
            "services,deployments,statefulsets,secrets",
            "-n",
            uninstalled.namespace,
            "-l",
            "app.kubernetes.io/part-of=prefixlb",
        )
        return {
            f"{each['kind']} {each['metadata']['name']}": (
                each.get("data") or each["spec"].get("selector")
            )
            for each in of
        }

    uninstalled.install(PREVIOUS)
    before = kept()
    assert len(before) >= 8
    uninstalled.upgrade(uninstalled.values())
    assert before.items() <= kept().items()
    uninstalled.rollback()
    assert kept() == before
    uninstalled.uninstall()
    uninstalled.cluster.wait_for("nothing is left", lambda: not uninstalled.remains(), timeout_s=60)


def test_uninstall_leaves_nothing(installed: Release) -> None:
    assert len(installed.remains()) > 20
    installed.uninstall()
    installed.cluster.wait_for("nothing is left", lambda: not installed.remains(), timeout_s=60)
