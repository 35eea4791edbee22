"""Token ids back to text, one at a time, for byte-level vocabularies."""

import codecs
from collections.abc import Sequence


def byte_of_character() -> dict[str, int]:
    """The byte each character of a byte-level vocabulary stands for (as GPT-2's encoder maps them).

    Printable Latin-1 stands for itself; the other bytes, in order, for the characters from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }


BYTES = byte_of_character()


def token_bytes(token: str) -> bytes:
    """What a vocabulary entry adds to the text; one outside the byte alphabet is text itself."""
    try:
        return bytes(BYTES[character] for character in token)
    except KeyError:
        return token.encode()


class Detokenizer:
    """Turns one request's tokens into text as they come.

    Text comes out as soon as its characters are complete; the concatenated pieces equal the text of
    all tokens at once, in which bytes that are not UTF-8 are U+FFFD.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """`pieces[id]` is what a token adds; ids beyond them, a vocabulary's padding, add none."""
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty in the middle of a character."""
        if token_id >= len(self._pieces):
            return ""
        return self._decoder.decode(self._pieces[token_id])

    def finish(self) -> str:
        """The rest: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
