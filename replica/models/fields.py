"""Values of a model's metadata, each of the type it must have; errors name the file and the key."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from proto.errors import InvalidModel

T = TypeVar("T")

KINDS = {
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class Fields:
    """The members of one JSON object or file header, JSON's null being the same as none."""

    def __init__(self, source: Path, values: object) -> None:
        """Raises InvalidModel if `values` is no mapping, as do the methods for what they return."""
        if not isinstance(values, Mapping):
            raise InvalidModel(f"{source} is {_shown(values)}, expected an object")
        self.source = source
        self._values: Mapping[str, Any] = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(key), list)

    def is_object(self, key: str) -> bool:
        return isinstance(self._values.get(key), dict)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value; one that has no default must be there."""
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise InvalidModel(f"{self.source} lacks {key!r}, {KINDS[kind]}")
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(key, KINDS[kind])
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        if (value := self.get(key, int, default)) < 1:
            raise self.wrong(key, "at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0, whole or not."""
        if key not in self and default is not None:
            return default
        value = self._values.get(key)
        if value is None:
            raise InvalidModel(f"{self.source} lacks {key!r}, a number")
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def items(self, key: str, kind: type[T]) -> list[T]:
        """A list of values of one kind."""
        values = self.get(key, list)
        if not all(isinstance(value, kind) for value in values):
            raise self.wrong(key, f"a list of which each item is {KINDS[kind]}")
        return values

    def wrong(self, key: str, expected: str) -> InvalidModel:
        """The error of a value that is there."""
        given = _shown(self._values.get(key))
        return InvalidModel(f"{self.source}: {key} is {given}, expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
