"""A TCP port for a process that a test starts."""

from router.cli.redis_server import free_ports


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on at this moment."""
    return free_ports(1, host)[0]
