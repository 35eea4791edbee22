"""One figure without a peer."""

from typing import NamedTuple


class Row(NamedTuple):
    """One figure: its values by round, and what it should be at most."""

    name: str
    values: list[float]
    goal: float | None
