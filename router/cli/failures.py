"""One sentence for a person about each way in which a request can fail."""

import argparse
import socket

import grpc

from proto.client import CHANNEL_OPTIONS
from proto.errors import DeadlineExceeded, LBError, NotServed, Unavailable

CONNECT_TIMEOUT_S = 2.0


def sentence(error: LBError, args: argparse.Namespace) -> str:
    """What went wrong with the command `args`, and what to do about it."""
    address, timeout_s = getattr(args, "router", None), getattr(args, "timeout_s", None)
    if address and isinstance(error, Unavailable):
        return why_unreachable(address) or str(error)
    if address and isinstance(error, NotServed):
        return (
            f"{address} is no router: a replica answers `generate` and `chat` alone, "
            "and another server none of our calls"
        )
    if timeout_s and isinstance(error, DeadlineExceeded):
        return f"the answer was not complete after {timeout_s:g} s (--timeout)"
    return str(error)


def why_unreachable(address: str) -> str | None:
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
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return (
                f"whoever listens at {address} does not speak gRPC; "
                "a router's metrics page and Redis have ports of their own"
            )
    return None
