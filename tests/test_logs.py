"""Lines of the log: text for people, JSON for what collects them."""

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from proto.logs import PAIR, JsonLines

SOURCES = [
    path
    for folder in ("proto", "router", "replica")
    for path in Path(__file__).parents[1].joinpath(folder).rglob("*.py")
]


def line(template: str, *arguments: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("router", logging.INFO, "x.py", 1, template, arguments, None)
    vars(record).update(more)
    text = JsonLines().format(record)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_pairs_become_fields_of_their_own_with_their_values() -> None:
    said = line(
        "replica joins replica=%s tokens=%d why=%r epoch=%016x silent_s=%.0f",
        *("r\n0", 7, "it's\tback", 255, 3.7),
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", said.pop("time"))
    assert said == {
        "level": "INFO",
        "logger": "router",
        "event": "replica joins",
        "replica": "r\n0",
        "tokens": 7,
        "why": "it's\tback",
        "epoch": "00000000000000ff",
        "silent_s": 4.0,
    }


@pytest.mark.parametrize(
    ("template", "arguments", "event"),
    [
        ("all is well", (), "all is well"),
        ("100 % of it", (), "100 % of it"),
        ("settings changed %s", ("a: 1 -> 2",), "settings changed a: 1 -> 2"),
        ("two of %d are here name=%s", (3, "x"), "two of 3 are here name=x"),
        ("by name=%(name)s", ({"name": "x"},), "by name=x"),
    ],
)
def test_what_is_not_made_of_pairs_stays_one_sentence(
    template: str, arguments: tuple[object, ...], event: str
) -> None:
    assert line(template, *arguments)["event"] == event


def test_a_traceback_is_a_field_of_one_line() -> None:
    try:
        raise RuntimeError("on purpose")
    except RuntimeError:
        said = line("it broke name=%s", "x", exc_info=sys.exc_info())
    assert "RuntimeError: on purpose" in said["exception"]
    assert said["event"] == "it broke" and said["name"] == "x"


def test_no_pair_of_a_message_has_the_name_of_a_field_of_every_line() -> None:
    names = {pair[1] for path in SOURCES for pair in PAIR.finditer(path.read_text())}
    assert "replica" in names
    assert not names & {"time", "level", "logger", "event", "exception"}
