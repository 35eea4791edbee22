"""The text of an answer as it may be shown: it ends before the first stop text."""

from collections.abc import Sequence

from proto.detokenizer import Detokenizer


class Answer:
    """Text from tokens, held back while it may turn out to be the beginning of a stop text."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self.stopped = False
        """A stop text came; nothing more is shown."""

    def push(self, token_id: int) -> str:
        """The text that can be shown now."""
        return self._show(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        shown = self._show(self._detokenizer.finish())
        return shown if self.stopped else shown + self._held

    def _show(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        ends = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        shown = len(text) - max(_overlap(text, stop) for stop in self._stop)
        self._held = text[shown:]
        return text[:shown]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that `stop` begins with, fewer than all of it."""
    longest = min(len(text), len(stop) - 1)
    return next(n for n in range(longest, -1, -1) if text.endswith(stop[:n]))
