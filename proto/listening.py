"""One address for a gRPC server, or the reason why it cannot be had."""

import socket

from grpc import aio


def listen(server: aio.Server, host: str, port: int) -> int:
    """The port that was bound; 0 takes a free one. Raises OSError, such as when it is taken."""
    # gRPC itself does not say why it fails, so the system is asked first.
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        probe.bind(address)
    try:
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(str(error)) from error
