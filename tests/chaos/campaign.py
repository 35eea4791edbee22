"""One fault after another, and what each of them cost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from proto import keys
from router.cli.child import Child
from tests.chaos.faults import RESTARTS, Fault, Scene
from tests.chaos.field import Field
from tests.chaos.load import Load, prompts
from tests.chaos.recovery import Unrecovered, audited, recovered

SETTLE_S = 1.0
"""Load before and after each fault."""

RECOVERY_S = 10.0
"""All mirrors equal their trees by audit within this time of a fault's end."""

RESTART_S = 1.0 + keys.LEASE_PERIOD_S
"""A restarted replica is followed a second after it is seen, which takes a heartbeat at most."""

MEMORY_SLACK_BYTES = 48 << 20
"""A router's process may grow by this much from the warm cluster to the end of the campaign."""


@dataclass(frozen=True)
class Trial:
    """One fault and what followed."""

    fault: str
    follow_s: float
    """From the fault's end until every router says that it follows every replica."""
    recovery_s: float
    """From the fault's end until audits of all routers have said equal."""
    failure: str = ""
    """Why it did not recover in time."""


class Campaign:
    """A field under load that faults are thrown at."""

    def __init__(self, field: Field, load: Load, scene: Scene) -> None:
        self.field = field
        self.load = load
        self._scene = scene
        self._memory = {router.name: 0 for router in field.routers}

    def start_memory(self) -> None:
        """Remember how large the routers are now."""
        self._memory = {router.name: _rss(router) for router in self.field.routers}

    def growth(self) -> dict[str, int]:
        """Bytes by which each router grew since; a restarted one has begun anew."""
        return {router.name: _rss(router) - self._memory[router.name] for router in self._routers}

    @property
    def _routers(self) -> Sequence[Child]:
        return self.field.routers

    async def throw(self, fault: Fault) -> Trial:
        """One fault, then the proof that all is as it should be."""
        await asyncio.sleep(SETTLE_S)
        await fault(self._scene)
        follow_s = recovery_s = float("inf")
        failure = ""
        try:
            follow_s = await recovered(self._routers, self.field.replicas)
            recovery_s = follow_s + await audited(self._routers)
        except Unrecovered as error:
            failure = str(error)
        else:
            if recovery_s > RECOVERY_S:
                failure = f"took {recovery_s:.1f} s, at most {RECOVERY_S:g} s"
            elif fault in RESTARTS and follow_s > RESTART_S:
                failure = f"followed after {follow_s:.1f} s, at most {RESTART_S:g} s"
        await asyncio.sleep(SETTLE_S)
        return Trial(fault.__name__, follow_s, recovery_s, failure)


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
            ready.start_memory()
            yield ready
            if running.done():
                await running  # raises what ended it
        finally:
            running.cancel()
            await asyncio.wait((running,))


def _rss(router: Child) -> int:
    return int(psutil.Process(router.pid).memory_info().rss)
