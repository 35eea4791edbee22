"""Whether replicas answer, and what follows if they do not."""

import asyncio
import logging
import time
from collections.abc import Callable

from grpc import aio

from proto import keys
from radix_rs import Router
from router.mirror import Mirror
from router.replica_state import Health, Liveness, ReplicaState

log = logging.getLogger(__name__)

PERIOD_S = 1.0
DOUBTED_PERIOD_S = 0.2
SILENT_AFTER_CHECKS = 2
"""Checks without an answer that make a replica silent, and suspect."""

GIVE_UP_S = keys.LEASE_TTL_S
"""Silent for this long, a replica loses the requests that wait for their first message. If its
stream is silent too, so does its mirror what it holds: without leases nobody hears of a death."""

VANISHED_S = 10.0
"""Without a sign of life for this long, be it a health check or a token, its answers end too: a
machine that vanished closes no connection."""


class HealthChecks:
    """Checks replicas and says which may be picked; all changes of liveness pass through here."""

    def __init__(self, *, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock

    async def run(self, state: ReplicaState, mirror: Mirror) -> None:
        """Check one replica until cancelled."""
        heard_s = self._clock()
        while True:
            await self._pause(state)
            health = await state.health()
            if health is not Health.SILENT:
                state.silent_checks, heard_s = 0, self._clock()
            match health:
                case Health.SERVING if state.liveness is not Liveness.LIVE:
                    try:
                        mirror.epoch_is(await state.epoch())  # perhaps another life of it
                        mirror.subscribed()  # still; where nothing is known any more it begins anew
                    except aio.AioRpcError:
                        continue  # it went away again; the next check decides
                    self._trust(state)
                case Health.SERVING:
                    state.doubted.clear()
                case Health.REFUSING:
                    self.suspect(state, "its health check says NOT_SERVING")
                case Health.SILENT:
                    state.silent_checks += 1
                    self._bear_silence(state, mirror, heard_s)

    def suspect(self, state: ReplicaState, why: str) -> None:
        """Do not pick it until a health check succeeds."""
        if state.liveness is not Liveness.SUSPECT:
            log.warning("replica suspect replica=%s why=%r", state.id, why)
            state.liveness = Liveness.SUSPECT
            state.doubted.set()
            self._router.set_eligible(state.id, False)

    def doubt(self, state: ReplicaState, why: str) -> None:
        """Check it soon; the data plane passes it over meanwhile, unless there is nobody else."""
        if state.liveness is Liveness.LIVE:
            log.warning("replica doubted replica=%s why=%r", state.id, why)
            state.liveness = Liveness.DOUBTED
            state.doubted.set()

    def answers(self, state: ReplicaState) -> bool:
        """Whether it shows life: its last health checks were answered, whatever they said, or it
        is sending an answer.
        """
        sends = self._clock() - state.heard_s < GIVE_UP_S
        return state.silent_checks < SILENT_AFTER_CHECKS or (sends and state.calls > 0)

    def _trust(self, state: ReplicaState) -> None:
        log.info("replica answers again replica=%s", state.id)
        state.liveness = Liveness.LIVE
        state.doubted.clear()
        self._router.set_eligible(state.id, True)

    def _bear_silence(self, state: ReplicaState, mirror: Mirror, heard_s: float) -> None:
        if state.silent_checks < SILENT_AFTER_CHECKS:
            return  # however long ago the one before was: perhaps it is us who slept
        self.suspect(state, f"{state.silent_checks} health checks without an answer")
        if self._clock() - heard_s >= GIVE_UP_S:
            state.give_up_unanswered("it is silent")
        alive_s = max(heard_s, state.heard_s)
        if self._clock() - max(alive_s, mirror.heard_s) >= GIVE_UP_S:
            mirror.forget("its replica is silent")
        if self._clock() - alive_s >= VANISHED_S:
            state.end_calls("it is silent")

    async def _pause(self, state: ReplicaState) -> None:
        """Until the next check is due: soon, when the replica becomes doubted meanwhile."""
        try:
            async with asyncio.timeout(PERIOD_S):
                await state.doubted.wait()
        except TimeoutError:
            return
        await asyncio.sleep(DOUBTED_PERIOD_S)
