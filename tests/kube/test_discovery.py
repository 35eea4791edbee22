"""Discovery by EndpointSlices that a real control plane makes of pods."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import Service

from router.discovery.endpoint_slices import EndpointSlices
from router.discovery.readiness import UNREADY_S
from tests.kube.cluster import ApiProxy, Cluster
from tests.kube.hollow_node import HollowNode, hollow_node, ready
from tests.live_router import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SERVICE = "replicas"
LABELS = {"app": SERVICE}
GONE = 410

PODS = 200

GONE_S = 5.0
"""Who is gone, or has no address any more, is out of the rotation within this time."""


class Followed(EndpointSlices):
    """What a router would know, and how often it read all."""

    lists = 0
    since = ""
    """A version to begin watching at instead of that of the first list."""

    async def _list(self) -> str:
        self.lists += 1
        version = await super()._list()
        return self.since if self.lists == 1 and self.since else version


@dataclass
class Discovery:
    """A namespace with a Service, and who follows it by a connection of its own."""

    node: HollowNode
    proxy: ApiProxy
    slices: Followed

    async def shows(self, *hosts: str, timeout_s: float = UNREADY_S + 5) -> float:
        """Wait until these serve. Returns after how many seconds."""
        began_s = time.monotonic()
        expected = sorted(f"{host}:30001" for host in hosts)
        await until(lambda: self.slices.addresses == expected, timeout_s, f"{expected[:3]}")
        return time.monotonic() - began_s


def follower(proxy: ApiProxy, namespace: str) -> Followed:
    return Followed(
        proxy.client(),
        service=SERVICE,
        namespace=namespace,
        port_name="grpc",
        rng=random.Random(0),
    )


@pytest.fixture
async def discovery(cluster: Cluster, namespace: str) -> AsyncIterator[Discovery]:
    ports = [{"name": "grpc", "port": 30001, "targetPort": "grpc"}]
    spec = {"clusterIP": "None", "selector": LABELS, "ports": ports}
    metadata = {"name": SERVICE, "namespace": namespace}
    with ApiProxy() as own, ApiProxy() as proxy:
        client, slices = own.client(), follower(proxy, namespace)
        await client.create(Service.from_dict({"metadata": metadata, "spec": spec}))
        async with hollow_node(client, namespace, namespace) as node:
            following = asyncio.create_task(slices.follow())
            yield Discovery(node, proxy, slices)
            following.cancel()
            await asyncio.wait([following])
        await slices.close()
        await client.aclose()


async def test_pods_come_and_go_as_they_are_ready(discovery: Discovery) -> None:
    node = discovery.node
    await discovery.shows()
    await node.run("a", "10.1.0.1", LABELS)
    await node.run("b", "10.1.0.2", LABELS)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    await node.says("a", conditions=ready(False))
    await discovery.shows("10.1.0.2")
    await node.says("a", conditions=ready(True))
    await discovery.shows("10.1.0.1", "10.1.0.2")
    assert discovery.slices.lists == 2 and discovery.slices.errors == 0  # anew before it left


async def test_a_pod_that_terminates_stays_until_it_is_gone(discovery: Discovery) -> None:
    """Serving or not, it ends its requests."""
    node = discovery.node
    await node.run("a", "10.1.0.1", LABELS)
    await node.run("b", "10.1.0.2", LABELS)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    await node.delete("a", grace_s=60)
    await asyncio.sleep(2.0)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    await node.says("a", conditions=ready(False))
    await asyncio.sleep(2.0)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    await node.delete("a", grace_s=0)
    await discovery.shows("10.1.0.2", timeout_s=GONE_S)


async def test_an_evicted_pod_that_is_still_listed_is_no_ghost(discovery: Discovery) -> None:
    node = discovery.node
    await node.run("a", "10.1.0.1", LABELS)
    await node.run("b", "10.1.0.2", LABELS)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    await node.says("a", phase="Failed", reason="Evicted", podIP=None, podIPs=None)
    await discovery.shows("10.1.0.2", timeout_s=GONE_S)


async def test_what_went_while_the_apiserver_was_away_is_gone_when_it_is_back(
    discovery: Discovery,
) -> None:
    node, slices = discovery.node, discovery.slices
    await node.run("a", "10.1.0.1", LABELS)
    await node.run("b", "10.1.0.2", LABELS)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    discovery.proxy.cut()
    await until(lambda: slices.up is False, 10.0, "it is away")
    await node.delete("a", grace_s=0)
    await node.run("c", "10.1.0.3", LABELS)
    await asyncio.sleep(1.0)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    discovery.proxy.restore()
    await discovery.shows("10.1.0.2", "10.1.0.3", timeout_s=8.0)
    assert slices.up


async def test_a_watch_that_is_cut_goes_on_as_if_nothing_were(discovery: Discovery) -> None:
    node, slices = discovery.node, discovery.slices
    await node.run("a", "10.1.0.1", LABELS)
    await discovery.shows("10.1.0.1")
    discovery.proxy.cut()
    discovery.proxy.restore()
    await node.run("b", "10.1.0.2", LABELS)
    await discovery.shows("10.1.0.1", "10.1.0.2")
    assert slices.up and slices.errors == 0


async def is_gone(slices: Followed, version: str) -> bool:
    """Whether the apiserver refuses to tell what has changed since."""
    try:
        async with asyncio.timeout(1.0):
            await slices._watch(version)
    except ApiError as error:
        return error.status.code == GONE
    except TimeoutError:
        return False
    raise AssertionError("the watch ended")


@pytest.mark.timeout(300)
async def test_a_version_that_the_apiserver_has_forgotten_is_read_anew_at_once(
    discovery: Discovery, namespace: str
) -> None:
    node, late = discovery.node, follower(discovery.proxy, namespace)
    await node.run("a", "10.1.0.1", LABELS)
    await discovery.shows("10.1.0.1")
    late.since = "1"
    # An apiserver remembers at least a hundred changes, and at least all of 75 s.
    while not await is_gone(late, late.since):
        for number in range(50):
            await node.annotate(SERVICE, str(number))
        await asyncio.sleep(2.0)
    following = asyncio.create_task(late.follow())
    await until(lambda: late.lists == 2, 5.0, "a second list")
    await node.run("b", "10.1.0.2", LABELS)
    expected = ["10.1.0.1:30001", "10.1.0.2:30001"]
    await until(lambda: late.addresses == expected, 5.0, f"{expected}")
    assert late.up and late.errors == 0
    following.cancel()
    await asyncio.wait([following])
    await late.close()


async def test_two_hundred_endpoints_are_followed_over_several_slices(
    discovery: Discovery,
) -> None:
    node, slices = discovery.node, discovery.slices
    hosts = [f"10.1.{number // 100}.{number % 100 + 1}" for number in range(PODS)]
    for first in range(0, PODS, 20):
        some = range(first, first + 20)
        await asyncio.gather(*(node.run(f"pod-{n}", hosts[n], LABELS) for n in some))
    all_s = await discovery.shows(*hosts, timeout_s=20.0)
    assert len(slices._slices) >= 2
    half = range(0, PODS, 2)
    await asyncio.gather(*(node.says(f"pod-{n}", conditions=ready(False)) for n in half))
    half_s = await discovery.shows(*hosts[1::2])
    await asyncio.gather(*(node.delete(f"pod-{n}", grace_s=0) for n in range(PODS)))
    none_s = await discovery.shows(timeout_s=10.0)
    print(f"\n{PODS} endpoints: all {all_s:.1f} s, half {half_s:.1f} s, none {none_s:.1f} s later")
    assert slices.errors == 0
