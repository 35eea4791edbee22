"""Clients that the data plane did not let in, told now and then: a flood of them makes no flood."""

import asyncio
import logging

from radix_rs import Plane

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""One line a reason in this time, at most."""


async def tell_of_turned_away(plane: Plane, *, period_s: float = PERIOD_S) -> None:
    """Until cancelled."""
    told: dict[str, int] = {}
    while True:
        await asyncio.sleep(period_s)
        for reason, times, last in plane.turned_away():
            if new := times - told.get(reason, 0):
                told[reason] = times
                log.warning(
                    "clients were turned away reason=%s times=%d last=%s", reason, new, last
                )
