"""A request's answer as it grows: which text may leave, and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from proto.detokenizer import Detokenizer
from proto.prefixlb.v1.inference_pb2 import FinishReason
from replica.sampling import Sampling


@dataclass(frozen=True)
class Addition:
    """What one token adds to the answer."""

    text: str
    finish_reason: FinishReason.ValueType
    """FINISH_REASON_UNSPECIFIED while the answer goes on."""
    is_stop_token: bool
    """The token ends the answer and is not part of it."""


class Output:
    """Fed with one request's tokens; tells the text that no stop text can claim any more."""

    def __init__(self, sampling: Sampling, detokenizer: Detokenizer) -> None:
        self._sampling = sampling
        self._detokenizer = detokenizer
        self._stops = StopTexts(sampling.stop_texts)
        self._num_tokens = 0

    def push(self, token_id: int) -> Addition:
        """Take the next token. Not called again once it has given a finish reason."""
        self._num_tokens += 1
        if token_id in self._sampling.stop_token_ids:
            return self._ended(FinishReason.FINISH_REASON_STOP, is_stop_token=True)
        text = self._stops.push(self._detokenizer.push(token_id))
        if self._stops.found:
            return Addition(text, FinishReason.FINISH_REASON_STOP, is_stop_token=False)
        if self._num_tokens >= self._sampling.max_tokens:
            return self._ended(FinishReason.FINISH_REASON_LENGTH, before=text)
        return Addition(text, FinishReason.FINISH_REASON_UNSPECIFIED, is_stop_token=False)

    def _ended(
        self, reason: FinishReason.ValueType, *, before: str = "", is_stop_token: bool = False
    ) -> Addition:
        text = before + self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        if self._stops.found:
            reason = FinishReason.FINISH_REASON_STOP
        return Addition(text, reason, is_stop_token)


class StopTexts:
    """Holds text back while it may be the beginning of a stop text.

    The stop text that is complete first ends the answer, however tokens cut the text; of several
    complete at the same character, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matchers = [Matcher(stop) for stop in stops]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that may leave after `text` has come; nothing more once a stop is found."""
        for place, character in enumerate(text):
            complete = [each.stop for each in self._matchers if each.push(character)]
            if complete:
                self.found = True
                whole = self._held + text[: place + 1]
                return whole[: -max(map(len, complete))]
        whole = self._held + text
        keep = max((each.matched for each in self._matchers), default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """What was held back, as no more text comes."""
        held, self._held = self._held, ""
        return "" if self.found else held


class Matcher:
    """How much of one stop text the end of the answer is, by Knuth, Morris and Pratt."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = borders(stop)

    def push(self, character: str) -> bool:
        """Whether `character` completes the stop text."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)


def borders(text: str) -> list[int]:
    """For each beginning of `text`: how long a shorter beginning also ends it, at most."""
    lengths = [0] * len(text)
    length = 0
    for place in range(1, len(text)):
        while length and text[length] != text[place]:
            length = lengths[length - 1]
        length += text[length] == text[place]
        lengths[place] = length
    return lengths
