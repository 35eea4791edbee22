"""A line of JSON Lines, or in one sentence why it is none."""

import json
from typing import Any

from proto.errors import InvalidRequest


def json_object(text: str, place: str) -> dict[str, Any]:
    """The object that `text` is. Raises InvalidRequest, which begins with `place`."""
    try:
        line = json.loads(text.rstrip())
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{place}: expected a JSON object ({error.msg} at character {error.pos + 1})"
        ) from None
    except (ValueError, RecursionError) as error:  # long numbers, deep lists
        raise InvalidRequest(f"{place}: expected a JSON object ({error})") from None
    if not isinstance(line, dict):
        raise InvalidRequest(f"{place}: expected a JSON object, got {shortened(line)}")
    return line


def shortened(value: object) -> str:
    """For an error: the beginning of a value of JSON, or "nothing"."""
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
