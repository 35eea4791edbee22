"""Whether a server serves yet, and if nobody does, why not."""

import socket
import time

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from rich.console import Console

from proto.credentials import IN_CLEAR, Credentials
from proto.errors import Unavailable
from router.cli import console
from router.cli.tls_trouble import why_no_tls

POLL_PERIOD_S = 0.1
CONNECT_TIMEOUT_S = 2.0


def serves(address: str, credentials: Credentials = IN_CLEAR) -> bool:
    """Whether the server at `address` says SERVING; one without a health service serves."""
    with credentials.channel(address) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNIMPLEMENTED)
    return bool(answer.status == HealthCheckResponse.SERVING)


def why_unreachable(address: str, credentials: Credentials = IN_CLEAR) -> str | None:
    """What is wrong with host:port as far as one can see from here; None: gRPC is spoken there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except socket.gaierror:
        return f"there is no host named {host}; --router and $PREFIXLB_ROUTER take HOST:PORT"
    except ConnectionRefusedError:
        return (
            f"nobody listens at {address}. Start a cluster with `prefixlb up`, "
            "or name a router with --router or $PREFIXLB_ROUTER"
        )
    except OSError as error:
        return f"cannot reach {address}: {error}"
    with credentials.channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            # Not before: who speaks gRPC would have to take the question for garbage.
            return why_no_tls(address, credentials) or (
                f"whoever listens at {address} does not speak gRPC: a metrics page, or Redis? "
                "A router listens at port 30000 unless told otherwise"
            )
    return None


def wait_until_serving(
    address: str, credentials: Credentials, out: Console, *, timeout_s: float
) -> None:
    """Return once it serves, telling `out` meanwhile. Raises Unavailable if that cannot be."""
    if serves(address, credentials):
        return
    started_s = time.monotonic()
    with console.waiting(out) as tell:
        while not serves(address, credentials):
            if reason := why_unreachable(address, credentials):
                raise Unavailable(reason)
            waited_s = time.monotonic() - started_s
            if waited_s > timeout_s:
                raise Unavailable(f"{address} is not ready after {timeout_s:.0f} s")
            tell(f"{address} to be ready (its replicas load or its mirrors fill)", waited_s)
            time.sleep(POLL_PERIOD_S)
