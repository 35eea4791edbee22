"""Types of the command's arguments: each says what was expected when something else is given."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

MAX_PORT = 65535


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in a range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if number < least:
            raise ArgumentTypeError(f"expected at least {least}, got {number}")
        if most is not None and number > most:
            raise ArgumentTypeError(f"expected at most {most}, got {number}")
        return number

    return read


def seconds(text: str) -> float:
    """A positive time."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return number


def at_least(least: float) -> Callable[[str], float]:
    """A number."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number < math.inf:
            raise ArgumentTypeError(f"expected a number of at least {least:g}, got {text!r}")
        return number

    return read


def part(text: str) -> float:
    """From 0 to below 1."""
    number = at_least(0)(text)
    if number >= 1:
        raise ArgumentTypeError(f"expected a number below 1, got {text!r}")
    return number


def address(text: str) -> str:
    """HOST:PORT, as gRPC takes it."""
    host, colon, port = text.rpartition(":")
    if "/" in text:
        problem = "no scheme and no path"
    elif not colon:
        raise ArgumentTypeError(f"expected HOST:PORT, the port is missing in {text!r}")
    elif not host or (":" in host and not host.startswith("[")):
        problem = "an IPv6 address in brackets"
    elif not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT):
        problem = f"a port from 1 to {MAX_PORT}"
    else:
        return text
    raise ArgumentTypeError(f"expected HOST:PORT with {problem}, got {text!r}")


def utf8(text: str) -> str:
    """Text, which the bytes of an argument need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentTypeError("expected UTF-8 text") from None
    return text


def model_files(text: str) -> Path:
    """A path that exists."""
    path = Path(text)
    if not path.exists():
        raise ArgumentTypeError(f"there is nothing at {text!r}")
    return path
