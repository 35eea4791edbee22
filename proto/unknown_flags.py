"""What is said of words of a command line that nobody knows: what was perhaps meant."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn

ALIKE = 0.7
"""From which likeness on something is worth asking about, as difflib counts it."""


def meant(given: str, known: Iterable[str]) -> str:
    """A question to end an error with, if something known is much like what was given."""
    close = get_close_matches(given, list(known), n=1, cutoff=ALIKE)
    return f"; did you mean {close[0]}?" if close else ""


def parse_all(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """As `parser.parse_args`, which has no idea what was meant."""
    args, rest = parser.parse_known_args(arguments)
    if rest:
        refuse(parser, rest)
    return args


def refuse(parser: ArgumentParser, rest: Sequence[str], advice: str = "") -> NoReturn:
    """End with code 2 over what the parser does not know, with advice where no flag is alike."""
    flag = next((each.partition("=")[0] for each in rest if each.startswith("--")), "")
    question = meant(flag, parser._option_string_actions)
    parser.error(f"unrecognized arguments: {' '.join(rest)}{question or advice}")
