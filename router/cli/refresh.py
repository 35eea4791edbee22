"""What is shown again each second: in its place in a terminal, one below the other in a pipe."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.live import Live
from rich.table import Table

from router.cli import console

PERIOD_S = 1.0

T = TypeVar("T")


def each_second(read: Callable[[], T]) -> Iterator[T]:
    """What `read` gives, now and every second after."""
    while True:
        due_s = time.monotonic() + PERIOD_S
        yield read()
        time.sleep(max(0.0, due_s - time.monotonic()))


def show(tables: Iterator[Table]) -> None:
    """Until there are no more, or Ctrl-C."""
    out = console.stdout()
    if out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            for table in tables:
                live.update(table, refresh=True)
        return
    for number, table in enumerate(tables):
        if number:
            out.print()
        out.print(table)
