"""Whether Redis answers, told once a change."""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)


class RedisLink:
    """State of one user of Redis, such as "leases" or "deltas"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.errors = 0
        self.set_aside: Mapping[str, str] = {}
        """What is there but cannot be read, and why; the rest is used without it."""
        self._told: bool | None = None

    def answered(self) -> None:
        """A command succeeded."""
        self.up = True
        if self._told is not True:
            log.info("redis answers link=%s", self.name)
            self._told = True

    def failed(self, error: Exception) -> None:
        """A command failed; the last view of things stands until one succeeds."""
        self.up = False
        self.errors += 1
        if self._told is not False:
            name = type(error).__name__
            log.warning("redis is away link=%s error=%r", self.name, f"{name}: {error}")
            self._told = False

    def sets_aside(self, bad: Mapping[str, str]) -> None:
        """All that cannot be read now; told once."""
        for name, why in bad.items():
            if name not in self.set_aside:
                log.error("set aside link=%s name=%r why=%r", self.name, name, why)
        for name in self.set_aside.keys() - bad.keys():
            log.info("no longer set aside link=%s name=%r", self.name, name)
        self.set_aside = dict(bad)
