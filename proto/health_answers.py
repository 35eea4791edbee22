"""What a process' health service says, for who asks in plain HTTP: a kubelet, whose gRPC probes
speak no TLS.
"""

import asyncio
from collections.abc import Mapping

import grpc
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

REPLY_TIMEOUT_S = 2.0
"""An event loop that takes longer to say how it is serves nobody."""


class _Unknown(Exception):
    """The health service does not know of a service, or not yet."""


class _Call:
    """All that a health check wants of a call."""

    async def abort(self, code: grpc.StatusCode) -> None:
        raise _Unknown(code)


class HealthAnswers:
    """Asks the health service on its event loop, from any other thread."""

    def __init__(self, servicer: health_aio.HealthServicer, paths: Mapping[str, str]) -> None:
        """`paths`: the service that each is about. To be made inside the running event loop."""
        self._servicer = servicer
        self._paths = paths
        self._loop = asyncio.get_running_loop()

    def serves(self, path: str, timeout_s: float = REPLY_TIMEOUT_S) -> bool | None:
        """Whether what `path` is about says SERVING; None if it is about nothing."""
        service = self._paths.get(path)
        if service is None:
            return None
        asked = asyncio.run_coroutine_threadsafe(self._ask(service), self._loop)
        try:
            return asked.result(timeout_s)
        except TimeoutError:
            asked.cancel()
            return False

    async def _ask(self, service: str) -> bool:
        try:
            answer = await self._servicer.Check(HealthCheckRequest(service=service), _Call())
        except _Unknown:
            return False
        return bool(answer.status == HealthCheckResponse.SERVING)
