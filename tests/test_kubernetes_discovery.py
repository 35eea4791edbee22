"""Replicas as endpoints of a Service: what an apiserver tells, and what it does not."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.models.discovery_v1 import EndpointSlice

from proto.errors import InvalidFile
from router.discovery.endpoint_slices import EndpointSlices, serving_addresses
from router.discovery.kubernetes import open_kubernetes
from tests.fake_apiserver import FakeApiserver, endpoint, fake_apiserver
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, until
from tests.test_router_metrics import samples

UNREADY_S = 0.3
PORTS = [{"name": "metrics", "port": 29001}, {"name": "grpc", "port": 30001}]


def client_of(url: str) -> AsyncClient:
    return AsyncClient(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="t")))


class Followed:
    """An apiserver, and what is known of its slices."""

    def __init__(self, apiserver: FakeApiserver, slices: EndpointSlices) -> None:
        self.apiserver = apiserver
        self.slices = slices

    def put(self, *endpoints: dict[str, Any], name: str = "a", **fields: Any) -> None:
        self.apiserver.put(name, endpoints=endpoints, ports=PORTS, **fields)

    async def shows(self, *hosts: str, timeout_s: float = 4.0) -> None:
        expected = sorted(f"{host}:30001" for host in hosts)
        await until(lambda: self.slices.addresses == expected, timeout_s, f"{expected}")

    async def watches(self) -> None:
        await until(lambda: self.apiserver.watchers == 1, 4.0, "a watch")


@asynccontextmanager
async def following(**times_s: float) -> AsyncIterator[Followed]:
    async with fake_apiserver() as (apiserver, url):
        client = client_of(url)
        slices = EndpointSlices(
            client, service="llm", namespace="ns", port_name="grpc", rng=random.Random(0), **times_s
        )
        task = asyncio.create_task(slices.follow())
        yield Followed(apiserver, slices)
        task.cancel()
        await asyncio.wait([task])
        await client.aclose()


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    async with following(unready_s=UNREADY_S) as followed:
        yield followed


async def test_endpoints_come_and_go_as_their_slices_say(followed: Followed) -> None:
    await followed.shows()
    await followed.watches()
    followed.put(endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=True))
    await followed.shows("10.0.0.1", "10.0.0.2")
    followed.put(endpoint("10.0.0.3"), name="b")
    await followed.shows("10.0.0.1", "10.0.0.2", "10.0.0.3")
    followed.put(endpoint("10.0.0.2"))
    await followed.shows("10.0.0.2", "10.0.0.3")
    followed.apiserver.delete("b")
    await followed.shows("10.0.0.2")
    path = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
    assert all(each.startswith(path) for each in followed.apiserver.asked)
    assert all("kubernetes.io%2Fservice-name%3Dllm" in each for each in followed.apiserver.asked)
    assert followed.apiserver.lists == 1


async def test_who_is_not_ready_goes_and_who_terminates_stays_until_it_is_gone(
    followed: Followed,
) -> None:
    await followed.watches()
    ending = endpoint("10.0.0.2", ready=False, serving=False, terminating=True)
    followed.put(endpoint("10.0.0.1", ready=True), ending)
    await followed.shows("10.0.0.1", "10.0.0.2")
    followed.put(endpoint("10.0.0.1", ready=False), ending)
    await followed.shows("10.0.0.2")
    followed.put(endpoint("10.0.0.1", ready=False))
    await followed.shows()


async def test_while_the_apiserver_is_away_nobody_leaves_for_not_being_ready(
    followed: Followed,
) -> None:
    """Nor at once when it is back: it may not have heard of anybody yet."""
    await followed.watches()
    followed.put(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    await followed.shows("10.0.0.1", "10.0.0.2")
    followed.apiserver.refuses = 503  # whoever watches is not cut off
    followed.put(endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False))
    await until(lambda: followed.slices.errors >= 4, 8.0, "it is asked in vain")
    await followed.shows("10.0.0.1", "10.0.0.2", timeout_s=0.1)
    lists = followed.apiserver.lists
    followed.apiserver.refuses = 0
    await until(lambda: followed.apiserver.lists > lists, 8.0, "all is read anew")
    await until(lambda: followed.slices.up is True, 4.0, "it is back")
    await followed.shows("10.0.0.1", "10.0.0.2", timeout_s=0.1)
    await followed.shows("10.0.0.1")


async def test_an_evicted_pod_without_an_address_is_no_ghost(followed: Followed) -> None:
    await followed.watches()
    followed.put(endpoint("10.0.0.1", uid="one"), endpoint("10.0.0.2", uid="two"))
    await followed.shows("10.0.0.1", "10.0.0.2")
    followed.put(endpoint("", uid="one", ready=False), endpoint("10.0.0.2", uid="two"))
    await followed.shows("10.0.0.2")


async def test_what_no_event_has_told_shows_when_all_is_read_anew() -> None:
    async with following(resync_s=0.2) as followed:
        await followed.watches()
        followed.put(endpoint("10.0.0.1"))
        await followed.shows("10.0.0.1")
        followed.apiserver.lose("a")
        await followed.shows()
        assert followed.slices.up


async def test_a_watch_too_old_is_begun_anew_at_once(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    await followed.watches()
    followed.put(endpoint("10.0.0.1"))
    await followed.shows("10.0.0.1")
    followed.apiserver.slices.clear()
    followed.apiserver.forget()
    await followed.shows()
    assert followed.apiserver.lists == 2
    assert "away" not in caplog.text


async def test_while_the_apiserver_is_away_the_last_view_stands_and_it_is_told_once(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    await followed.watches()
    followed.put(endpoint("10.0.0.1"))
    await followed.shows("10.0.0.1")
    followed.apiserver.hang_up()
    await followed.watches()
    assert followed.slices.up and "away" not in caplog.text
    followed.apiserver.refuses = 503
    followed.apiserver.hang_up()
    await until(lambda: followed.slices.up is False, 4.0, "it is away")
    before = len(followed.apiserver.asked)
    await until(lambda: len(followed.apiserver.asked) > before + 2, 4.0, "asked again")
    assert followed.slices.addresses == ["10.0.0.1:30001"]
    followed.apiserver.refuses = 0
    followed.apiserver.lose("a")
    await followed.shows(timeout_s=8.0)
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "away" in line] == ["kubernetes is away why='ApiError: no'"]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"no HTTP at all\r\n\r\n",
    ],
)
async def test_what_no_apiserver_says_is_an_apiserver_that_is_away(
    said: bytes, followed: Followed
) -> None:
    await followed.watches()
    followed.put(endpoint("10.0.0.1"))
    await followed.shows("10.0.0.1")
    followed.apiserver.says = said
    followed.apiserver.hang_up()
    await until(lambda: followed.slices.up is False, 4.0, "it is away")
    assert followed.slices.addresses == ["10.0.0.1:30001"]
    followed.apiserver.says = b""
    await until(lambda: bool(followed.slices.up), 8.0, "it is back")


async def test_a_version_that_is_refused_at_once_is_no_apiserver_that_is_away(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    await followed.watches()
    followed.apiserver.refuses_watches = 410
    followed.apiserver.hang_up()
    await until(lambda: followed.apiserver.lists >= 3, 8.0, "all is read anew")
    assert followed.slices.up and followed.slices.errors == 0
    assert "away" not in caplog.text


@pytest.mark.parametrize("refused", ["refuses", "refuses_watches"])
async def test_a_service_account_that_may_not_is_told_what_it_needs(
    refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_apiserver() as (apiserver, url):
        setattr(apiserver, refused, 403)
        client = client_of(url)
        slices = EndpointSlices(
            client, service="llm", namespace="ns", port_name="grpc", rng=random.Random(0)
        )
        task = asyncio.create_task(slices.follow())
        await until(lambda: slices.up is False, 4.0, "refused")
        assert slices.addresses == (None if refused == "refuses" else [])
        assert "must list and watch endpointslices" in caplog.text
        task.cancel()
        await asyncio.wait([task])
        await client.aclose()


def test_a_pod_of_a_dual_stack_service_is_one_replica() -> None:
    def of(family: str, *endpoints: dict[str, Any]) -> EndpointSlice:
        metadata = {"name": family}
        fields = {"addressType": family, "endpoints": endpoints, "ports": PORTS}
        return EndpointSlice.from_dict({"metadata": metadata, **fields})

    slices = [
        of("IPv6", endpoint("fd00::1", uid="one"), endpoint("fd00::2", uid="two")),
        of("IPv4", endpoint("10.0.0.1", uid="one")),
        of("FQDN", endpoint("name.example", uid="three")),
    ]
    assert serving_addresses(slices, "grpc") == ["10.0.0.1:30001", "[fd00::2]:30001"]
    assert serving_addresses(slices, "http") == []


def test_without_a_cluster_the_router_says_what_it_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "config"
    broken.write_text("clusters: 5")
    monkeypatch.setenv("KUBECONFIG", str(broken))
    with pytest.raises(InvalidFile, match="neither a pod's service account nor a kubeconfig"):
        open_kubernetes("llm", "grpc", ask=lambda _: asyncio.Future(), rng=random.Random(0))


@dataclass
class Service:
    """Two replicas, an apiserver that knows them, and a router that finds them by it."""

    apiserver: FakeApiserver
    router: LiveRouter
    r0: FakeReplica
    r1: FakeReplica


def put_endpoint(apiserver: FakeApiserver, replica: FakeReplica, endpoint: dict[str, Any]) -> None:
    """In a slice of its own: all of a slice have one port."""
    ports = [{"name": "grpc", "port": replica.port}]
    apiserver.put(replica.id, endpoints=[endpoint], ports=ports)


@pytest.fixture
async def service(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with fake_apiserver() as (apiserver, url), replicas(r0, r1):
        config = tmp_path / "config"
        config.write_text(
            "current-context: c\n"
            f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
            "users: [{name: u, user: {token: t}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u, namespace: ns}}]\n"
        )
        monkeypatch.setenv("KUBECONFIG", str(config))
        for replica in (r0, r1):
            put_endpoint(apiserver, replica, endpoint("127.0.0.1"))
        settings = {"discovery": "kubernetes", "kubernetes_service": "llm"}
        async with live_router(redis_url, **settings) as router:
            await router.synced(r0, r1)
            yield Service(apiserver, router, r0, r1)


@pytest.mark.redis
async def test_a_router_serves_with_the_replicas_of_a_service(service: Service) -> None:
    apiserver, router, r0 = service.apiserver, service.router, service.r0
    apiserver.delete(service.r1.id)
    await until(lambda: list(router.parts.fleet.members) == [r0.id], 5.0, "r1 left")
    answer = await router.generate([1, 2, 3])
    assert answer.replica == r0.id
    page = await samples(router)
    assert (page["kubernetes_up{}"], page["kubernetes_errors_total{}"]) == (1, 0)
    apiserver.refuses = 503
    apiserver.hang_up()
    await until(lambda: not router.parts.discovery.slices.up, 4.0, "it is away")
    page = await samples(router)
    assert page["kubernetes_up{}"] == 0 and page["kubernetes_errors_total{}"] >= 1
    assert (await router.generate([1, 2, 3])).replica == r0.id


@pytest.mark.redis
@pytest.mark.parametrize("listed", [True, False], ids=["without an address", "not at all"])
async def test_what_waits_at_an_evicted_pod_is_answered_by_another_within_5_s(
    service: Service, listed: bool
) -> None:
    router, evicted, prompt = service.router, service.r0, prompt_of(40)
    await evicted.store(prompt)
    await router.synced(evicted)
    evicted.script = Script(first_after_s=60.0)
    asked = asyncio.create_task(router.generate(prompt))
    await until(lambda: evicted.running == 1, 5.0, "it is asked, where the prompt is cached")
    if listed:
        put_endpoint(service.apiserver, evicted, endpoint("", ready=False))
    else:
        service.apiserver.delete(evicted.id)
    answer = await asyncio.wait_for(asked, 5.0)
    assert (answer.replica, answer.code) == (service.r1.id, grpc.StatusCode.OK)
    assert (await router.generate(prompt)).replica == service.r1.id
