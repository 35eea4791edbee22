"""Traces in the format that Mooncake publishes: a JSON object a line."""

from pathlib import Path
from typing import Any

from proto.errors import InvalidRequest
from router.cli.json_line import json_object, shortened
from router.cli.sim.workload import Request, Workload

MAX_HASH = 2**64 - 1


def read(path: Path, block_size: int) -> Workload:
    """All requests by arrival, the first at 0 s; `block_size` unless a line says another one.

    InvalidRequest names file, line and what was expected.
    """
    lines: list[tuple[int, dict[str, Any]]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    lines.append((number, json_object(text, f"{path}:{number}")))
    except OSError as error:
        raise InvalidRequest(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text: {error}") from error
    if not lines:
        raise InvalidRequest(f"{path} has no requests, expected a JSON object a line")
    requests = [_request(line, f"{path}:{number}") for number, line in lines]
    requests.sort(key=lambda request: request.arrived_s)
    first_s = requests[0].arrived_s
    sizes = {_whole(line, "block_size", f"{path}:{number}", block_size) for number, line in lines}
    if len(sizes) > 1:
        raise InvalidRequest(f"{path}: blocks of {sorted(sizes)} tokens, expected one size")
    return Workload(path.name, sizes.pop(), requests).since(first_s)


def _request(line: dict[str, Any], place: str) -> Request:
    timestamp = line.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or timestamp < 0:
        raise InvalidRequest(
            f"{place}: timestamp: expected milliseconds from 0 on, got {shortened(timestamp)}"
        )
    hashes = line.get("hash_ids")
    if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
        raise InvalidRequest(
            f"{place}: hash_ids: expected a list of whole numbers from 0 to 2^64 - 1, "
            f"got {shortened(hashes)}"
        )
    prompt = _whole(line, "input_length", place)
    return Request(timestamp / 1000, prompt, _whole(line, "output_length", place), hashes, place)


def _whole(line: dict[str, Any], name: str, place: str, default: int | None = None) -> int:
    number = line.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**31:
        raise InvalidRequest(
            f"{place}: {name}: expected a whole number of tokens, got {shortened(number)}"
        )
    return number


def _is_hash(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_HASH
