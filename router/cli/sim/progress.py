"""How far a simulation is, shown once it has taken a while."""

import contextlib
import time
from collections.abc import Callable, Iterator

from router.cli import console

AFTER_S = 2.0
"""A shorter one says nothing."""

PERIOD_S = 5.0
"""Between two lines in a pipe."""


@contextlib.contextmanager
def progress(
    label: str, total: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with how many of `total` requests have come."""
    out = console.stderr()
    start_s = clock()
    with contextlib.ExitStack() as stack:
        status = None
        next_s = start_s + AFTER_S

        def report(done: int) -> None:
            nonlocal status, next_s
            if clock() < next_s:
                return
            text = f"{label}: {100 * done // max(total, 1)} % of {total} requests"
            if not out.is_terminal:
                out.print(text, markup=False)
                next_s = clock() + PERIOD_S
            elif status is None:
                status = stack.enter_context(out.status(text))
                next_s = 0.0
            else:
                status.update(text)

        yield report
