"""Files that may change while a process runs, such as mounted Secrets: used again if good."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from proto.errors import InvalidFile

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Between two looks. What changed is used once two looks on end found the same: files that belong
together are seldom written at once."""

MAX_FILE_BYTES = 1 << 20

Contents = tuple[bytes, ...]


class WatchedFiles:
    """Some files that are used together; of what they held, the last that was good is in use.

    They are read, not asked for their time: a swapped symlink, as Kubernetes makes them, is a
    change like any other.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        use: Callable[[Contents], None],
        *,
        refused: Callable[[], None],
    ) -> None:
        """Uses them at once. Raises InvalidFile if they cannot be read or `use` raises it.

        `use` gets what they hold, in the order of `paths`; `refused` is called each time that
        they changed to something `use` does not take. `name`: for the log.
        """
        self._name = name
        self._paths = tuple(paths)
        self._use = use
        self._refused = refused
        contents = self._read()
        use(contents)
        self._known: Contents | str = contents
        """Used, or refused and told."""

    async def follow(self, period_s: float = PERIOD_S) -> None:
        """Use them again whenever they changed, until cancelled."""
        seen = self._known
        while True:
            await asyncio.sleep(period_s)
            before, seen = seen, await asyncio.to_thread(self._look)
            if seen == before and seen != self._known:
                self._known = seen
                self._take(seen)

    def _take(self, seen: Contents | str) -> None:
        try:
            if isinstance(seen, str):
                raise InvalidFile(seen)
            self._use(seen)
        except InvalidFile as error:
            log.warning(
                "changed files are no good, what they held stays in use files=%s why=%r",
                self._name,
                str(error),
            )
            self._refused()
        else:
            log.info("changed files are in use files=%s", self._name)

    def _look(self) -> Contents | str:
        """What they hold, or why that cannot be known."""
        try:
            return self._read()
        except InvalidFile as error:
            return str(error)

    def _read(self) -> Contents:
        return tuple(map(read_file, self._paths))


def read_file(path: Path) -> bytes:
    """All of a small file. Raises InvalidFile that names it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidFile(f"{path} has more than {MAX_FILE_BYTES} bytes")
    return content
