"""Keeps what a client writes from becoming the tokens that a chat's roles and ends are made of."""

from collections.abc import Iterable

MARK = "\udc00"
"""Where a text is to be cut before it is tokenised. A lone surrogate is no UTF-8, so no client can
send one, and whatever a template does to a text, a cut stays where it was put."""


class SpecialTokens:
    """The texts that a tokenizer takes for control tokens, wherever it meets them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [text for text in texts if len(text) > 1]  # one character cannot be cut
        self._begins = {text[:length] for text in self._texts for length in range(1, len(text))}
        self._longest = max(map(len, self._begins), default=0)

    def split(self, text: str) -> str:
        """`text` with a MARK in each special token, and after one that may be completed by what
        the template writes next.
        """
        # One search a token, as an alternation of all tries each of them at each "<".
        for special in self._texts:
            text = text.replace(special, special[0] + MARK + special[1:])
        end = len(text.rstrip())  # templates may trim
        if any(text[end - n : end] in self._begins for n in range(1, min(self._longest, end) + 1)):
            return text[:end] + MARK + text[end:]
        return text
