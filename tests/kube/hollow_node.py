"""A node without a machine: the test is its kubelet, and says what becomes of its pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Node, NodeStatus, Pod, PodStatus
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.types import PatchType

from tests.kube.release import ROUTER_IMAGE

HEARTBEAT_S = 10.0


class HollowNode:
    """Pods of one namespace that run because it is said that they do."""

    def __init__(self, client: AsyncClient, name: str, namespace: str) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace

    async def run(self, pod: str, address: str, labels: dict[str, str]) -> None:
        """A pod that is ready at this address."""
        container = {"name": "replica", "image": ROUTER_IMAGE}
        container["ports"] = [{"name": "grpc", "containerPort": 30001}]  # type: ignore[assignment]
        spec = {"nodeName": self._name, "containers": [container]}
        metadata = {"name": pod, "namespace": self._namespace, "labels": labels}
        await self._client.create(Pod.from_dict({"metadata": metadata, "spec": spec}))
        where = {"podIP": address, "podIPs": [{"ip": address}]}
        await self.says(pod, phase="Running", conditions=ready(True), **where)

    async def says(self, pod: str, **status: Any) -> None:
        """Change what is known of a pod; None takes a field away."""
        await self._client.patch(
            PodStatus,
            pod,
            {"status": status},
            namespace=self._namespace,
            patch_type=PatchType.MERGE,
        )

    async def delete(self, pod: str, grace_s: int) -> None:
        """With grace it terminates until it is deleted without."""
        await self._client.delete(Pod, pod, namespace=self._namespace, grace_period=grace_s)

    async def annotate(self, service: str, value: str) -> None:
        """Change the slices of a Service, but nothing that they say of its endpoints."""
        changed = {"metadata": {"annotations": {"prefixlb-test": value}}}
        labels = {"kubernetes.io/service-name": service}
        async for each in self._client.list(
            EndpointSlice, namespace=self._namespace, labels=labels
        ):
            await self._client.patch(
                EndpointSlice,
                each.metadata.name,
                changed,
                namespace=self._namespace,
                patch_type=PatchType.MERGE,
            )

    async def beat(self) -> None:
        """Be seen alive until cancelled."""
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            (condition,) = ready(True)
            condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now, "reason": "Test"}
            status = {"conditions": [condition], "capacity": {"pods": "500", "cpu": "100"}}
            await self._client.patch(
                NodeStatus, self._name, {"status": status}, patch_type=PatchType.MERGE
            )
            await asyncio.sleep(HEARTBEAT_S)


def ready(is_ready: bool) -> list[dict[str, str]]:
    """Conditions of a pod or a node."""
    return [{"type": "Ready", "status": str(is_ready)}]


@asynccontextmanager
async def hollow_node(client: AsyncClient, name: str, namespace: str) -> AsyncIterator[HollowNode]:
    """A node that nothing else is scheduled to, while the block lasts."""
    taint = {"key": "prefixlb-test", "effect": "NoSchedule"}
    await client.create(Node.from_dict({"metadata": {"name": name}, "spec": {"taints": [taint]}}))
    node = HollowNode(client, name, namespace)
    beating = asyncio.create_task(node.beat())
    try:
        yield node
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await client.deletecollection(Pod, namespace=namespace, grace_period=0)
        await client.delete(Node, name)
