"""Whether Redis answers, told once a change."""

import logging

log = logging.getLogger(__name__)


class RedisLink:
    """State of one user of Redis, such as "leases" or "deltas"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.errors = 0
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
            log.warning("redis is away link=%s error=%r", self.name, error)
            self._told = False
