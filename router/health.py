"""What the health service says of the router, and from when on."""

import asyncio
import logging
import time
from collections.abc import Callable

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

from router.fleet import Fleet
from router.mirror import MirrorState
from router.replica_state import Liveness

log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

LIVENESS = "liveness"
READINESS = ("", "readiness", "prefixlb.v1.Inference")

PATHS = {"/livez": LIVENESS, "/readyz": "readiness"}
"""On the metrics page, the services that they are about."""

PERIOD_S = 0.05


class Readiness:
    """Turns the router ready once it knows what its replicas have cached, and then stays so."""

    def __init__(
        self,
        servicer: health_aio.HealthServicer,
        fleet: Fleet,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servicer = servicer
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._clock = clock
        self._draining = False

    async def begin(self) -> None:
        """What is true before the port opens."""
        await self._servicer.set(LIVENESS, SERVING)
        await self._say(NOT_SERVING)

    async def run(self) -> None:
        """Say SERVING as soon as it is true."""
        deadline_s = self._clock() + self._timeout_s
        # Polled, because many parts decide it, and only until it is true.
        while not (synced := self._synced()) and self._clock() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(PERIOD_S)
        if self._draining:
            return
        await self._say(SERVING)
        members = len(self._fleet.members)
        if synced:
            log.info("router ready replicas=%d", members)
        else:
            log.warning(
                "router ready though its mirrors are not: routing knows little of the caches yet "
                "replicas=%d waited_s=%.0f",
                *(members, self._timeout_s),
            )

    async def drain(self) -> None:
        """The process still lives, but wants nothing new, whatever it learns from now on."""
        self._draining = True
        await self._say(NOT_SERVING)

    def _synced(self) -> bool:
        """There is a replica, and every live one's mirror streams."""
        live = [m for m in self._fleet.members.values() if m.state.liveness is Liveness.LIVE]
        return bool(live) and all(m.mirror.state is MirrorState.STREAMING for m in live)

    async def _say(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for service in READINESS:
            await self._servicer.set(service, status)
