"""Whether a server serves yet, by the standard health service."""

import time

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from rich.console import Console

from proto.client import CHANNEL_OPTIONS
from proto.errors import Unavailable
from router.cli import console
from router.cli.failures import why_unreachable

POLL_PERIOD_S = 0.1


def serves(address: str) -> bool:
    """Whether the server at `address` says SERVING."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == HealthCheckResponse.SERVING)


def wait_until_serving(address: str, out: Console, *, timeout_s: float) -> None:
    """Return once it serves, telling `out` meanwhile. Raises Unavailable if that cannot be."""
    if serves(address):
        return
    started_s = time.monotonic()
    with console.waiting(out) as tell:
        while not serves(address):
            if reason := why_unreachable(address):
                raise Unavailable(reason)
            waited_s = time.monotonic() - started_s
            if waited_s > timeout_s:
                raise Unavailable(f"{address} is not ready after {timeout_s:.0f} s")
            tell(f"{address} to be ready (its replicas load or its mirrors fill)", waited_s)
            time.sleep(POLL_PERIOD_S)
