"""Whether Redis answers, told once a change."""

import logging
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Between two attempts at most, however long Redis is away: every second that mirrors lag behind
its return costs more than an attempt does.
"""

TOLD_S = 60.0
"""What was readable for less than this is not told again: some things come and go."""

MAX_TOLD = 256


class RedisLink:
    """State of one user of Redis, such as "leases" or "deltas"."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.up = False
        self.errors = 0
        self.set_aside: Mapping[str, str] = {}
        """What is there but cannot be read, and why; the rest is used without it."""
        self._clock = clock
        self._told: bool | None = None
        self._failed_s: float | None = None
        """When the first of the failures came that no answer has followed."""
        self._told_aside: dict[str, float] = {}
        """When each thing that was told to be set aside was so last."""

    @property
    def was_asked(self) -> bool:
        """Nobody reads deltas where there is no replica."""
        return self._told is not None

    @property
    def away_s(self) -> float:
        """For how long every command has failed; 0 if the last one did not."""
        failed_s = self._failed_s  # read once: other threads ask, too
        return 0.0 if failed_s is None else self._clock() - failed_s

    def answered(self) -> None:
        """A command succeeded."""
        self.up = True
        self._failed_s = None
        if self._told is not True:
            log.info("redis answers link=%s", self.name)
            self._told = True

    def failed(self, error: Exception) -> None:
        """A command failed; the last view of things stands until one succeeds."""
        self.up = False
        self.errors += 1
        if self._failed_s is None:
            self._failed_s = self._clock()
        if self._told is not False:
            name = type(error).__name__
            log.warning("redis is away link=%s why=%r", self.name, f"{name}: {error}")
            self._told = False

    def rests(self) -> None:
        """Nobody asks now; how the last command ended says nothing any more."""
        self._failed_s = self._told = None

    def sets_aside(self, bad: Mapping[str, str]) -> None:
        """All that cannot be read now; each is told once, and no more than MAX_TOLD."""
        now_s = self._clock()
        for name, last_s in list(self._told_aside.items()):
            if name not in bad and now_s - last_s >= TOLD_S:
                log.info("no longer set aside link=%s name=%r", self.name, name)
                del self._told_aside[name]
        for name, why in bad.items():
            if name not in self._told_aside:
                if len(self._told_aside) >= MAX_TOLD:
                    continue
                log.error("set aside link=%s name=%r why=%r", self.name, name, why)
            self._told_aside[name] = now_s
        self.set_aside = dict(bad)
