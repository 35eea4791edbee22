"""Replicas by the Kubernetes Service that they are endpoints of."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from lightkube import AsyncClient

from proto.errors import InvalidFile
from proto.prefixlb.v1.delta_pb2 import Lease
from router.discovery.asked import PERIOD_S, Ask, AskedReplicas
from router.discovery.endpoint_slices import EndpointSlices


def open_kubernetes(
    service: str, port_name: str, *, ask: Ask, rng: random.Random
) -> "KubernetesDiscovery":
    """`service`: NAME, in the namespace of this pod or of the kubeconfig, or NAMESPACE/NAME.

    The apiserver is that of the pod this runs in, or of KUBECONFIG or ~/.kube/config.
    Raises InvalidFile if there is none of these, or it is no good.
    """
    try:
        client = AsyncClient()
    except Exception as error:  # whatever a broken kubeconfig leads to
        raise InvalidFile(
            "--discovery kubernetes: neither a pod's service account nor a kubeconfig can be used: "
            f"{type(error).__name__}: {error}"
        ) from error
    *namespace, name = service.split("/")
    slices = EndpointSlices(
        client,
        service=name,
        namespace=namespace[0] if namespace else client.namespace,
        port_name=port_name,
        rng=rng,
    )
    return KubernetesDiscovery(slices, ask=ask)


class KubernetesDiscovery:
    """Those that answer at the endpoints that serve. Who is no longer listed leaves at once."""

    def __init__(self, slices: EndpointSlices, *, ask: Ask) -> None:
        self.slices = slices
        self._replicas = AskedReplicas(ask)

    async def views(self) -> AsyncIterator[Sequence[Lease]]:
        following = asyncio.create_task(self.slices.follow(), name="endpoint slices")
        try:
            while not following.done():
                if self.slices.addresses is not None:
                    yield await self._replicas.at(self.slices.addresses)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.slices.changed.wait(), PERIOD_S)
                if self.slices.changed.is_set() and self.slices.addresses is not None:
                    self.slices.changed.clear()
                    # Who went is not to wait for the answers of those who are there.
                    yield self._replicas.known(self.slices.addresses)
            following.result()
        finally:
            following.cancel()
            await asyncio.wait([following])
            await self.slices.close()
