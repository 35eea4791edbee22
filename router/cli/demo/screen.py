"""One line a request as it ends; in a terminal, answers grow below while they stream."""

import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proto.answer import Result
from router.cli.console import percent
from router.cli.demo.workload import Turn

HEADER = (
    f"{'':>3} {'conversation':<13} {'turn':>4}  {'replica':<10} {'reason':<7} "
    f"{'prompt':>6} {'cached':>6} {'ttft':>7}  answer"
)
LEGEND = """\
prefix: it went where most of it is cached; load: elsewhere, because waiting there costs more;
cold: no replica holds a block (16 tokens) of it. The few tokens cached then begin every chat."""
REDRAW_PERIOD_S = 0.1
BRIEF_STEP = 6


class Screen:
    """Where `play` reports to. Brief: a line for each BRIEF_STEP answers."""

    def __init__(self, console: Console, *, brief: bool = False) -> None:
        self._console = console
        self._brief = brief
        self._answered = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._streaming: dict[Turn, str] = {}
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        if not self._brief:
            self._console.print(Text(LEGEND, style="dim"))
            self._console.print(Text(HEADER, style="bold"))
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def streaming(self, turn: Turn, text: str) -> None:
        """The answer so far."""
        self._streaming[turn] = text
        now_s = time.monotonic()
        if self._live.is_started and now_s - self._drawn_s >= REDRAW_PERIOD_S:
            self._drawn_s = now_s
            self._draw()

    def answered(self, turn: Turn, result: Result) -> None:
        """The line of an answered request, or of all so far."""
        self._answered += 1
        self._prompt_tokens += result.prompt_tokens
        self._cached_tokens += result.cached_tokens
        self._end(turn, self._so_far() if self._brief else self._request(turn, result))

    def _so_far(self) -> Text | None:
        if self._answered % BRIEF_STEP:
            return None
        rate = percent(self._cached_tokens, self._prompt_tokens)
        return Text(f"{self._answered:>3} answered, {rate} of their prompt tokens were cached")

    def _request(self, turn: Turn, result: Result) -> Text:
        replica, reason = ("-", "-")
        if result.route:
            replica, reason = result.route.replica, result.route.reason
        hit = 2 * result.cached_tokens > result.prompt_tokens
        line = self._start(turn)
        line.append(f"{replica:<10} ", style=f"color({2 + sum(replica.encode()) % 5})")
        line.append(f"{reason:<7} {result.prompt_tokens:>6} ")
        line.append(f"{result.cached_tokens:>6} ", style="green" if hit else "yellow")
        line.append(f"{result.ttft_s or 0:>5.2f} s  ")
        line.append(one_line(result.text), style="italic")
        return line

    def failed(self, turn: Turn, error: str) -> None:
        """The line of a request without an answer."""
        line = self._start(turn)
        line.append(f"failed: {one_line(error)}", style="bold red")
        self._end(turn, line)

    def _start(self, turn: Turn) -> Text:
        text = f"{turn.number:>3} {turn.conversation:<13} {turn.index + 1:>4}  "
        return Text(text, no_wrap=True, overflow="ellipsis")

    def _end(self, turn: Turn, line: Text | None) -> None:
        self._streaming.pop(turn, None)
        if line:
            # A terminal shows one row a request, a file all of it.
            cut = self._console.is_terminal
            self._console.print(line, no_wrap=cut, overflow="ellipsis" if cut else None)
        if self._live.is_started:
            self._draw()

    def _draw(self) -> None:
        lines = []
        for turn, text in self._streaming.items():
            line = self._start(turn)
            line.append(f"... {one_line(text)}", style="dim")
            lines.append(line)
        self._live.update(Group(*lines), refresh=True)


def one_line(text: str) -> str:
    """Without line breaks and runs of blanks."""
    return " ".join(text.split())
