"""One address for a gRPC server, or the reason why it cannot be had."""

import socket

from grpc import aio

from proto.errors import Unavailable


def listen(server: aio.Server, host: str, port: int) -> int:
    """The port that was bound; 0 takes a free one. Raises Unavailable, such as when it is taken."""
    try:
        _probe(host, port)
        return server.add_insecure_port(f"{host}:{port}")
    except (OSError, RuntimeError) as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}") from error


def _probe(host: str, port: int) -> None:
    # gRPC itself does not say why it fails, so the system is asked first.
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        probe.bind(address)
