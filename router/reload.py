"""Settings that change while the router runs: which can, how they do, and what is said of it."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proto.errors import InvalidFile
from proto.settings import BadSettings
from proto.watched_files import Contents, WatchedFiles
from radix_rs import Router
from router.metrics import Metrics
from router.server import Server
from router.settings import RULES, RouterSettings

log = logging.getLogger(__name__)

Read = Callable[[], RouterSettings]
"""Reads the settings anew; raises BadSettings."""

BOUNDS = frozenset({"max_inflight", "queue_size", "queue_timeout_s", "retries", "retry_budget"})
CHANGEABLE = RULES | BOUNDS | {"log_level"}
"""Every other setting needs a restart."""


class Reload:
    """Reads the settings again and uses what may change; the rest stays as it was at the start."""

    def __init__(
        self,
        settings: RouterSettings,
        read: Read,
        *,
        router: Router,
        server: Server,
        metrics: Metrics,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._read = read
        self._router = router
        self._server = server
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._succeeded()

    @property
    def policy(self) -> str:
        """The one in use."""
        return self._settings.policy

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Reload on SIGHUP until the end of the block, if there is a file that may have changed;
        else it ends the process, as it does when a terminal closes.
        """
        if self._settings.settings_file is None:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def watched(self) -> list[WatchedFiles]:
        """The settings' file, to be followed; none if there is none. Raises InvalidFile."""
        path = self._settings.settings_file
        if path is None:
            return []
        # Its own reading is used, as flags and environment go before what the file holds.
        return [WatchedFiles("settings", [path], self._use, refused=lambda: None)]

    def _use(self, _: Contents) -> None:
        if not self.reload():
            raise InvalidFile("see the line before")

    def reload(self) -> bool:
        """False if the settings are no good: then all stays as it is."""
        try:
            new = self._read()
        except BadSettings as error:
            log.error("settings not reloaded why=%r", str(error))
            self._metrics.settings_reloaded.set(0)
            return False
        changed = [
            name
            for name in RouterSettings.model_fields
            if getattr(new, name) != getattr(self._settings, name)
        ]
        taken = [name for name in changed if name in CHANGEABLE]
        kept = [name for name in changed if name not in CHANGEABLE]
        if kept:
            log.warning("settings need a restart, the old stay names=%s", ",".join(kept))
        if taken:
            self._take({name: getattr(new, name) for name in taken})
        else:
            log.info("settings read again, nothing to change")
        self._succeeded()
        return True

    def _take(self, values: dict[str, object]) -> None:
        old = self._settings
        self._settings = settings = old.model_copy(update=values)
        if values.keys() & RULES:
            self._router.follow(settings.rules)
        if values.keys() & BOUNDS:
            self._server.set_bounds(**{name: getattr(settings, name) for name in BOUNDS})
        if "log_level" in values:
            logging.getLogger().setLevel(settings.log_level)
        if "policy" in values:
            self._metrics.policy_is(settings.policy)
        said = (f"{name}={getattr(old, name)}->{value}" for name, value in values.items())
        log.info("settings changed %s", " ".join(said))

    def _succeeded(self) -> None:
        self._metrics.settings_reloaded.set(1)
        self._metrics.settings_reload_time.set(self._wall_clock())
