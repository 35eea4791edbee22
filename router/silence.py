"""Replicas that live and say nothing: their mirrors stay as they are, and nobody would notice."""

import asyncio
import logging

from proto import keys
from router.fleet import Fleet
from router.redis_link import RedisLink
from router.replica_state import Liveness, ReplicaState

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Between two looks."""


class SilenceWatch:
    """Finds live replicas without even a heartbeat while Redis answers.

    It counts looks, not time: a router that was frozen hears what came meanwhile before it judges.
    """

    def __init__(self, fleet: Fleet, *, link: RedisLink) -> None:
        """`link`: the one by which deltas come."""
        self._fleet = fleet
        self._link = link
        self._batches: dict[str, int] = {}
        """Read from each replica's stream until the last look."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Set every member's `silent_s`; one line in the log when a silence begins or ends."""
        batches = {
            name: member.mirror.totals.batches for name, member in self._fleet.members.items()
        }
        for name, member in self._fleet.members.items():
            if batches[name] != self._batches.get(name):
                _hear(member.state)
            elif self._link.up and member.state.liveness is Liveness.LIVE:
                _miss(member.state)
            else:  # nothing could have come, or its health is the alarm
                member.state.silent_s = 0.0
        self._batches = batches


def is_silent(state: ReplicaState) -> bool:
    """Whether to give an alarm."""
    return state.silent_s >= keys.SILENT_S


def _hear(state: ReplicaState) -> None:
    if is_silent(state):
        log.info("replica sends deltas again replica=%s", state.id)
    state.silent_s = 0.0


def _miss(state: ReplicaState) -> None:
    was_silent = is_silent(state)
    state.silent_s += PERIOD_S
    if is_silent(state) and not was_silent:
        log.warning(
            "replica lives but sends no deltas replica=%s silent_s=%.0f", state.id, state.silent_s
        )
