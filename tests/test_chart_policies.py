"""Who reaches whom by the chart's NetworkPolicies, as Kubernetes reads them."""

from typing import Any

import pytest

from tests.chart import NAMESPACE, VALUE_SETS, Object, component, example, of_kind, pods, render

Peer = tuple[str, dict[str, str]]
"""A pod's namespace and labels."""

STRANGER: Peer = (NAMESPACE, {"app": "client"})
FOREIGNER: Peer = ("elsewhere", {"app": "client"})
PROMETHEUS: Peer = ("monitoring", {"app": "prometheus"})

GRPC, METRICS, REPLICA_GRPC, REPLICA_METRICS, REDIS = 30000, 29000, 30001, 29001, 6379
PORTS = {"router": (GRPC, METRICS), "replica": (REPLICA_GRPC, REPLICA_METRICS), "redis": (REDIS,)}


def matches(selector: Object, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: Object, pod: Peer) -> bool:
    namespace, labels = pod
    if "ipBlock" in peer:
        return False
    if "namespaceSelector" in peer:
        own = {"kubernetes.io/metadata.name": namespace}
        return matches(peer["namespaceSelector"], own) and matches(
            peer.get("podSelector", {}), labels
        )
    return namespace == NAMESPACE and matches(peer["podSelector"], labels)


class Policies:
    """What a cluster makes of a chart's policies."""

    def __init__(self, values: Object) -> None:
        objects = render(values)
        self._policies = list(of_kind(objects, "NetworkPolicy").values())
        self.parts: dict[str, Peer] = {
            component(pod): (NAMESPACE, pod["metadata"]["labels"]) for _, pod in pods(objects)
        }

    def _allows(self, direction: str, of: Peer, other: Peer | None, port: int) -> bool:
        """`other`: None for what is no pod."""
        side = {"Ingress": "from", "Egress": "to"}[direction]
        namespace, labels = of
        if namespace != NAMESPACE:
            return True
        chosen = [
            each["spec"]
            for each in self._policies
            if direction in each["spec"]["policyTypes"]
            and matches(each["spec"]["podSelector"], labels)
        ]
        if not chosen:
            return True
        rules: list[Any] = [rule for each in chosen for rule in each.get(direction.lower(), [])]
        return any(
            port in [each["port"] for each in rule["ports"]]
            and (
                side not in rule
                or (other is not None and any(is_peer(each, other) for each in rule[side]))
            )
            for rule in rules
        )

    def reaches(self, source: Peer, target: Peer, port: int) -> bool:
        return self._allows("Egress", source, target, port) and self._allows(
            "Ingress", target, source, port
        )

    def leaves(self, part: str, port: int) -> bool:
        """To an address that is no pod's."""
        return self._allows("Egress", self.parts[part], None, port)


def table(policies: Policies) -> set[tuple[str, str, int]]:
    sources = {
        **policies.parts,
        "stranger": STRANGER,
        "foreigner": FOREIGNER,
        "prometheus": PROMETHEUS,
    }
    return {
        (source, target, port)
        for source, peer in sources.items()
        for target, ports in PORTS.items()
        if target in policies.parts
        for port in ports
        if policies.reaches(peer, policies.parts[target], port)
    }


def test_only_who_has_business_there_reaches_a_port() -> None:
    assert table(Policies({})) == {
        ("stranger", "router", GRPC),
        ("test", "router", GRPC),
        ("prometheus", "router", METRICS),
        ("prometheus", "replica", REPLICA_METRICS),
        ("router", "replica", REPLICA_GRPC),
        ("router", "redis", REDIS),
        ("replica", "redis", REDIS),
    }


def test_clients_can_be_of_other_namespaces_and_forward_by_themselves() -> None:
    everybody = [{"namespaceSelector": {}}]
    found = table(
        Policies({"networkPolicy": {"clients": everybody, "lookasideClients": everybody}})
    )
    assert {
        ("foreigner", "router", GRPC),
        ("foreigner", "replica", REPLICA_GRPC),
        ("stranger", "replica", REPLICA_GRPC),
    } <= found
    assert ("foreigner", "redis", REDIS) not in found
    assert ("foreigner", "router", METRICS) not in found


def test_only_names_and_what_is_outside_the_release_lie_beyond_it() -> None:
    policies = Policies({})
    for part in ("router", "replica", "test"):
        assert policies.leaves(part, 53), part
    for part in policies.parts:
        for port in (80, 443, 6443, 6379, 30001):
            assert not policies.leaves(part, port), (part, port)
    assert not policies.leaves("redis", 53)


def test_only_routers_that_discover_by_kubernetes_reach_the_apiserver() -> None:
    policies = Policies({"discovery": "kubernetes"})
    assert policies.leaves("router", 443) and policies.leaves("router", 6443)
    assert not policies.leaves("replica", 443)


def test_an_existing_redis_is_reached_where_it_is_said_to_be() -> None:
    policies = Policies(
        {"redis": {"enabled": False, "existing": {"url": "redis://redis.example.com"}}}
    )
    assert policies.leaves("router", 6379) and policies.leaves("replica", 6379)
    named = of_kind(render(example("external-redis")), "NetworkPolicy")
    for part in ("router", "replica"):
        egress = named[f"llm-prefixlb-{part}-egress"]["spec"]["egress"]
        peers = [rule.get("to") for rule in egress if rule["ports"][0]["port"] == 6380]
        assert peers == [[{"ipBlock": {"cidr": "10.20.0.0/24"}}]]


def test_a_collector_is_reached_by_routers_and_replicas_once_there_is_one() -> None:
    without, given = Policies({}), {"endpoint": "http://collector.observability.svc:4317"}
    policies = Policies({"tracing": given})
    for part in ("router", "replica"):
        assert policies.leaves(part, 4317) and not without.leaves(part, 4317), part
    assert not policies.leaves("test", 4317) and not policies.leaves("redis", 4317)
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}]
    named = Policies(
        {"tracing": given, "networkPolicy": {"collector": {"to": peers, "ports": [4318]}}}
    )
    assert not named.leaves("router", 4318)
    assert named.reaches(named.parts["replica"], FOREIGNER, 4318)


def test_a_policy_that_allows_something_is_of_one_direction() -> None:
    """Enforcers that take both together let a pod send what it may only receive."""
    for each in of_kind(render(example("kubernetes-discovery")), "NetworkPolicy").values():
        allows = {"ingress", "egress"} & set(each["spec"])
        assert [way.lower() for way in each["spec"]["policyTypes"]] == [*allows] or not allows


@pytest.mark.parametrize(
    "values", [v for n, v in VALUE_SETS.items() if n != "hpa, without policies"]
)
def test_every_pod_is_covered_both_ways(values: Object) -> None:
    objects = render(values)
    policies = of_kind(objects, "NetworkPolicy").values()
    for name, pod in pods(objects):
        covered = {
            direction
            for each in policies
            if matches(each["spec"]["podSelector"], pod["metadata"]["labels"])
            for direction in each["spec"]["policyTypes"]
        }
        assert covered == {"Ingress", "Egress"}, name
