"""Who can reach an address that a process listens on."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can. A name that is not localhost may be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
