"""The endpoints of one Kubernetes Service that serve, by its EndpointSlices."""

import asyncio
import logging
import random
from collections.abc import Collection, Iterator

import httpx2
from lightkube import ApiError, AsyncClient, ConfigError
from lightkube.models.discovery_v1 import Endpoint
from lightkube.resources.discovery_v1 import EndpointSlice

from router.backoff import pauses
from router.discovery.readiness import UNREADY_S, Readiness

log = logging.getLogger(__name__)

RESYNC_S = 60.0
"""After so long all is read anew: what no event has told shows then at last."""

RETRY_S = 5.0
"""Between two attempts at most, however long the apiserver is away."""

REREAD_S = 1.0
"""After so long at least all is read anew to see who has not become ready: many leave together."""

SERVICE_LABEL = "kubernetes.io/service-name"

FAMILIES = ("IPv4", "IPv6")
"""Kinds of addresses, the preferred first: a pod of a dual-stack Service is in slices of both."""

FAILURES = (httpx2.HTTPError, OSError, ValueError, KeyError, ConfigError)
"""The client's errors: also of answers that no apiserver gives but a proxy does, and of a token
that cannot be read.
"""

GONE = 410
FORBIDDEN = 403


class EndpointSlices:
    """Lists and watches, as Kubernetes' own clients do.

    While the apiserver is away what was last read stands, and nobody leaves: who has not been ready
    for long goes when all is read anew, which shows whether it is known of at all.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        service: str,
        namespace: str,
        port_name: str,
        rng: random.Random,
        unready_s: float = UNREADY_S,
        resync_s: float = RESYNC_S,
    ) -> None:
        """`port_name`: the port of the Service on which replicas serve gRPC. `unready_s`: who was
        ready leaves after so long of not being it; `resync_s`: all is read anew after so long.
        """
        self._client = client
        self._namespace = namespace
        self._service = service
        self._port_name = port_name
        self._rng = rng
        self._resync_s = resync_s
        self._readiness = Readiness(unready_s)
        self._slices: dict[str, EndpointSlice] = {}
        self.addresses: list[str] | None = None
        """host:port of the endpoints that serve, sorted; None until they were read."""
        self.changed = asyncio.Event()
        self.up: bool | None = None
        """Whether the apiserver answers; None until it was asked."""
        self.errors = 0
        """Attempts that failed; a watch that ends is none."""

    async def follow(self) -> None:
        """Keep `addresses` true until cancelled."""
        retry = pauses(self._rng, most_s=RETRY_S)
        while True:
            try:
                since = await self._list()
                retry = await self._watch_a_while(since, retry)
            except FAILURES as error:
                self._failed(error)
                await asyncio.sleep(next(retry))

    async def _watch_a_while(self, since: str, retry: Iterator[float]) -> Iterator[float]:
        """Until all is to be read anew. Returns the pauses from then on.

        Connections end now and then, and versions are forgotten: neither says that the apiserver is
        away, which shows when all is read.
        """
        try:
            await self._watch(since)
        except TimeoutError:
            retry = pauses(self._rng, most_s=RETRY_S)
        except (httpx2.TransportError, httpx2.HTTPStatusError) as error:
            if isinstance(error, httpx2.HTTPStatusError) and _code(error) != GONE:
                raise
            await asyncio.sleep(next(retry))
        return retry

    async def close(self) -> None:
        """End the connections to the apiserver."""
        await self._client.aclose()

    async def _list(self) -> str:
        """Returns the version from which on changes are to be watched."""
        listed = self._client.list(
            EndpointSlice, namespace=self._namespace, labels={SERVICE_LABEL: self._service}
        )
        slices = {_name(each): each async for each in listed}
        if not self.up:
            log.info("kubernetes answers")
        self.up = True
        self._slices = slices
        self._tell()
        return str(listed.resourceVersion)

    async def _watch(self, since: str) -> None:
        """Raises TimeoutError when all is to be read anew."""
        changes = self._client.watch(
            EndpointSlice,
            namespace=self._namespace,
            labels={SERVICE_LABEL: self._service},
            resource_version=since,
        )
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(self._ends_at_s(began_s)) as watching:
            async for what, each in changes:
                if what == "DELETED":
                    self._slices.pop(_name(each), None)
                else:
                    self._slices[_name(each)] = each
                self._tell()
                watching.reschedule(self._ends_at_s(began_s))

    def _ends_at_s(self, began_s: float) -> float:
        """Of a watch."""
        leaves_at_s = max(began_s + REREAD_S, self._readiness.next_leaves_at_s)
        return min(began_s + self._resync_s, leaves_at_s)

    def _tell(self) -> None:
        slices = self._slices.values()
        served = self._readiness.serving(
            self.addresses or (),
            ready=serving_addresses(slices, self._port_name),
            there=serving_addresses(slices, self._port_name, ready_or_not=True),
            now_s=asyncio.get_running_loop().time(),
        )
        if self.addresses is None or served != {*self.addresses}:
            self.addresses = sorted(served)
            self.changed.set()

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._readiness.begin_anew()
        if self.up is not False:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, httpx2.HTTPStatusError) and _code(error) == FORBIDDEN:
                why += " (the router's service account must list and watch endpointslices)"
            log.warning("kubernetes is away why=%r", why)
        self.up = False


def _code(error: httpx2.HTTPStatusError) -> int | None:
    """What the apiserver answered with: to a list, within a watch, or to the wish for one."""
    return error.status.code if isinstance(error, ApiError) else error.response.status_code


def serving_addresses(
    slices: Collection[EndpointSlice], port_name: str, *, ready_or_not: bool = False
) -> list[str]:
    """host:port of every endpoint that serves once, by the preferred family that it has, sorted.

    Without an address, as those of evicted pods are, an endpoint is nobody's.
    """
    found: dict[str, str] = {}
    for family in FAMILIES:
        for each in slices:
            if each.addressType != family:
                continue
            ports = [port.port for port in each.ports or () if port.name == port_name and port.port]
            for endpoint in each.endpoints or ():
                if ports and endpoint.addresses and (ready_or_not or _serves(endpoint)):
                    host = endpoint.addresses[0]
                    address = f"[{host}]:{ports[0]}" if family == "IPv6" else f"{host}:{ports[0]}"
                    found.setdefault(_pod(endpoint) or address, address)
    return sorted(found.values())


def _serves(endpoint: Endpoint) -> bool:
    """Ready, which is also what unsaid means, or on its way out.

    A pod that terminates is never ready, yet ends its requests: it says itself that it drains.
    """
    conditions = endpoint.conditions
    return conditions is None or conditions.ready is not False or bool(conditions.terminating)


def _pod(endpoint: Endpoint) -> str:
    """Whose endpoint it is, if a pod is named."""
    pod = endpoint.targetRef
    return (pod and pod.uid) or ""


def _name(each: EndpointSlice) -> str:
    if not each.metadata or not each.metadata.name:
        raise ValueError("an EndpointSlice without a name")
    return each.metadata.name
