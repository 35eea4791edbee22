"""How long to wait before trying something again."""

import random
from collections.abc import Iterator


def pauses(rng: random.Random, *, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[float]:
    """Endless pauses in seconds: the bound doubles from `first_s` to `most_s`, each drawn below it.

    Drawn from the upper half only, so that a pause neither vanishes nor falls together with a
    neighbour's.
    """
    bound_s = first_s
    while True:
        yield rng.uniform(bound_s / 2, bound_s)
        bound_s = min(2 * bound_s, most_s)
