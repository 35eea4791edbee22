"""What a lease must look like before anything of it is used, dialled or printed."""

import re

from proto.prefixlb.v1.delta_pb2 import Lease

MAX_SHOWN_CHARS = 80

ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")

SCHEMES = {"unix", "unix-abstract", "vsock", "dns", "ipv4", "ipv6", "xds", "google-c2p"}
"""Where a host has one of these names, gRPC takes the address for another kind."""


def check_lease(lease: Lease) -> None:
    """Raises ValueError, in characters that print, if `lease` says what no replica says."""
    if not lease.model.isprintable():
        raise ValueError(f"model {_shown(lease.model)} has characters that do not print")
    if not lease.address:
        return  # it is listed as refused
    found = ADDRESS.fullmatch(lease.address)
    port_is_one = found is not None and 1 <= int(found["port"]) <= 65535
    if found is None or found["host"].lower() in SCHEMES or not port_is_one:
        raise ValueError(f"address {_shown(lease.address)}, expected host:port")


def _shown(text: str) -> str:
    return ascii(text[:MAX_SHOWN_CHARS])
