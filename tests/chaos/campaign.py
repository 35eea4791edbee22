"""One fault after another, and what each of them cost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from proto import keys
from tests.chaos.faults import RESTARTS, Fault, Missed, Scene
from tests.chaos.field import Field
from tests.chaos.load import Load, prompts
from tests.chaos.memory import Memory
from tests.chaos.recovery import Unrecovered, audited, recovered

SETTLE_S = 1.0
"""Load after each fault, and so before the next."""

RECOVERY_S = 10.0
"""All mirrors equal their trees by audit within this time of a fault's end."""

RESTART_S = 1.0 + keys.LEASE_PERIOD_S
"""A restarted replica is followed a second after it is seen, which takes a heartbeat at most."""


@dataclass(frozen=True)
class Trial:
    """One fault and what followed."""

    fault: str
    follow_s: float | None
    """From the fault's end until every router says that it follows every replica; None: never."""
    recovery_s: float | None
    """From the fault's end until audits of all routers have said equal; None: never."""
    failure: str = ""
    """Why it proves nothing, or what did not recover in time."""


class Campaign:
    """A field under load that faults are thrown at."""

    def __init__(self, field: Field, load: Load, scene: Scene) -> None:
        self.field = field
        self.load = load
        self.memory = Memory(field)
        self._scene = scene

    async def throw(self, fault: Fault) -> Trial:
        """One fault, then the proof that all is as it should be."""
        follow_s = recovery_s = None
        failures = []
        try:
            await fault(self._scene)
        except Missed as error:
            failures.append(f"did not bite: {error}")
        routers = self.field.routers
        try:
            follow_s = await recovered(routers, self.field.replicas)
            recovery_s = follow_s + await audited(routers)
        except Unrecovered as error:
            failures.append(str(error))
        else:
            if recovery_s > RECOVERY_S:
                failures.append(f"took {recovery_s:.1f} s, at most {RECOVERY_S:g} s")
            elif fault in RESTARTS and follow_s > RESTART_S:
                failures.append(f"followed after {follow_s:.1f} s, at most {RESTART_S:g} s")
        await asyncio.sleep(SETTLE_S)
        await self.memory.look()
        return Trial(fault.__name__, follow_s, recovery_s, "; ".join(failures))


@asynccontextmanager
async def campaign(
    directory: Path,
    *,
    seed: int,
    hold_s: Callable[[float], float] = lambda full_s: full_s,
    replicas: int = 3,
    workers: int = 2,
) -> AsyncIterator[Campaign]:
    """A field that has warmed up, under load until the end of the block."""
    rng = random.Random(seed)
    async with Field(directory, replicas=replicas, rng=rng) as field:
        load = Load(field.routers, prompts(rng), workers=workers, seed=seed)
        await load.learn(field.replicas[0].address)
        running = asyncio.create_task(load.run(), name="load")
        try:
            ready = Campaign(field, load, Scene(field, load, rng, hold_s))
            await recovered(field.routers, field.replicas)
            await asyncio.sleep(2 * SETTLE_S)
            await ready.memory.look()
            yield ready
            if running.done():
                await running  # raises what ended it
        finally:
            running.cancel()
            await asyncio.wait((running,))
