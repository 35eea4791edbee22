"""SIGTERM and a closed terminal end a command as Ctrl-C does, so that its children end too."""

import signal
from types import FrameType


def end_in_order() -> None:
    """From here on each of the three raises KeyboardInterrupt in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
