"""What subcommands print with: colours, tables and bars in a terminal, plain lines in a pipe."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 200
"""Columns of output nobody looks at directly; wide enough that no table is cut."""

WAITING_PERIOD_S = 5.0


def stdout() -> Console:
    """For results."""
    return _console(Console(highlight=False))


def stderr() -> Console:
    """For progress, notes and errors, so that stdout stays clean for scripts."""
    return _console(Console(stderr=True, highlight=False))


def _console(console: Console) -> Console:
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def error(message: str) -> None:
    """One line for what went wrong."""
    stderr().print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)


@contextlib.contextmanager
def waiting(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Shows what is waited for; yields a function to call often, with that and the seconds so far.

    In a pipe: a line for each thing that is waited for, and again every WAITING_PERIOD_S.
    """
    if console.is_terminal:
        with console.status("") as status:
            yield lambda what, waited_s: status.update(f"waiting for {what}, {waited_s:.0f} s")
        return
    shown, shown_s = "", 0.0

    def line(what: str, waited_s: float) -> None:
        nonlocal shown, shown_s
        if what != shown or waited_s - shown_s >= WAITING_PERIOD_S:
            console.print(f"waiting for {what}, {waited_s:.0f} s")
            shown, shown_s = what, waited_s

    yield line


def percent(part: float, whole: float) -> str:
    """As in 41.7 %, or - of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def table(console: Console, *columns: str, title: str | None = None) -> Table:
    """An empty table; columns whose name starts with ">" are aligned to the right."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold" if console.is_terminal else "",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        padding=(0, 1),
        pad_edge=False,
    )
    for name in columns:
        made.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    return made


def noted(table: Table, notes: Iterable[str]) -> Group:
    """A table, unless it is empty, and below it what there is to say."""
    return Group(*([table] if table.row_count else []), *map(Text, notes))


@contextlib.contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a transfer on stderr; yields a function to call with (bytes so far, bytes in all).

    In a pipe: a line each tenth.
    """
    console = stderr()
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, TransferSpeedColumn(), console=console) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = -1

    def line(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // total
        if tenth > shown:
            shown = tenth
            console.print(f"{label}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    yield line
