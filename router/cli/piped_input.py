"""What a pipe brings, as text whatever the locale says."""

import sys
from collections.abc import Iterator

from proto.errors import InvalidRequest


def whole_input() -> str:
    """All of stdin. Raises InvalidRequest if it is not UTF-8."""
    return _text(sys.stdin.buffer.read(), "stdin")


def lines() -> Iterator[str]:
    """The lines of stdin that are not blank. Raises InvalidRequest at one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if text := _text(line, f"line {number} of stdin").strip():
            yield text


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{what} is not UTF-8 text: byte 0x{data[error.start]:02x} after {error.start} bytes"
        ) from None
