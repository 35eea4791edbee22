"""How busy the machine was."""

from pathlib import Path
from typing import NamedTuple


class CoreSeconds(NamedTuple):
    """Of all cores since the start, in ticks."""

    busy: int
    all: int


def core_seconds() -> CoreSeconds:
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, idle, waiting, *rest = map(int, line.split()[1:])
    busy = user + nice + system + sum(rest[:3])
    return CoreSeconds(busy, busy + idle + waiting)


def busy_percent(before: CoreSeconds, after: CoreSeconds) -> float:
    return 100 * (after.busy - before.busy) / (after.all - before.all)
