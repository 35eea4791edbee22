"""A mirror against random histories of faults."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from router.mirror import MirrorState
from tests.mirror_story import Story, Told


class Wire:
    """What lies between a replica and a mirror: any batch may be lost, come twice, or come late."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._late: list[bytes] = []

    def carry(self, batch: bytes, fate: str) -> None:
        match fate:
            case "arrives":
                self._story.mirror.batch(batch)
            case "arrives twice":
                self._story.mirror.batch(batch)
                self._story.mirror.batch(batch)
            case "is late":
                self._late.append(batch)
            case "comes after those that are late":
                self.release()
                self._story.mirror.batch(batch)
            case "is late and comes in their midst":
                self._late.append(batch)
                self.release()

    def release(self) -> None:
        """What is late comes now, in any order."""
        self._story.rng.shuffle(self._late)
        while self._late:
            self._story.mirror.batch(self._late.pop())


FATES = (
    *("arrives", "arrives", "arrives", "arrives twice", "is lost", "is late"),
    *("comes after those that are late", "is late and comes in their midst"),
)
"""Of a batch."""

DEEDS = (
    *("change", "change", "change", "change", "heartbeat", "restart"),
    *("snapshots hang", "snapshots go on", "a snapshot fails", "a snapshot lies"),
)
"""Of a replica, each with its batch."""


@settings(deadline=None, max_examples=100)
@given(
    history=st.lists(st.tuples(st.sampled_from(DEEDS), st.sampled_from(FATES)), max_size=60),
    seed=st.integers(0, 1000),
)
def test_any_history_of_faults_ends_equal_after_one_heartbeat(
    history: list[tuple[str, str]], seed: int
) -> None:
    async def tell() -> None:
        story = Story(seed)
        wire = Wire(story)

        async def rest() -> None:
            for _ in range(6):
                await story.settle()

        async def ends_equal() -> None:
            await rest()
            story.mirror.batch(story.batch())
            await rest()
            assert story.mirror.state is MirrorState.STREAMING
            assert story.equal()
            story.router.check()

        async with Told(story):
            story.mirror.subscribed()
            for deed, fate in history:
                match deed:
                    case "snapshots hang":
                        story.snapshot_gate.clear()
                    case "snapshots go on":
                        story.snapshot_gate.set()
                    case "a snapshot fails":
                        story.snapshot_fails = 1
                    case "a snapshot lies":
                        story.snapshot_lies = 1
                match deed:
                    case "restart":
                        batch = story.restart()
                    case "heartbeat":
                        batch = story.batch()
                    case _:
                        batch = story.change()
                wire.carry(batch, fate)
                await asyncio.sleep(0)
            story.snapshot_gate.set()
            await ends_equal()
            wire.release()  # even then, the last of them
            await ends_equal()

    asyncio.run(tell())
