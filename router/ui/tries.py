"""How many wrong tokens an address may bring."""

import ipaddress
import math
import time
from collections.abc import Callable

from proto.errors import Overloaded

MOST = 10
"""Wrong ones in a row; then a try each FORGIVEN_S."""

FORGIVEN_S = 6.0

MAX_CLIENTS = 1024
"""Remembered; beyond it those that failed longest ago are forgotten."""


class Tries:
    """A leaky bucket for each address, and for each /64 of IPv6."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._empty_s: dict[str, float] = {}
        """When each bucket will be empty; the one that failed last stands last."""

    def check(self, client: str) -> None:
        """Raises Overloaded: even a right token is not looked at, or guessing could go on."""
        filled = (self._empty_s.get(_key(client), 0.0) - self._clock()) / FORGIVEN_S
        if filled > MOST - 1:
            error = Overloaded("too many wrong tokens came from this address")
            error.retry_after_s = math.ceil((filled - (MOST - 1)) * FORGIVEN_S)
            raise error

    def failed(self, client: str) -> None:
        key = _key(client)
        begins_s = max(self._empty_s.pop(key, 0.0), self._clock())
        self._empty_s[key] = begins_s + FORGIVEN_S
        if len(self._empty_s) > MAX_CLIENTS:
            del self._empty_s[next(iter(self._empty_s))]


def _key(client: str) -> str:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if address.version == 4 or (address.ipv4_mapped is not None):
        return client
    return str(ipaddress.ip_network((int(address), 64), strict=False))
