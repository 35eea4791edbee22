"""A mirror against one trouble after the other, with a scripted replica and no I/O."""

import asyncio

import pytest

import radix_rs
from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Removed, Stored
from router.mirror import CALM_S, HELD_BYTES, JITTER_S, MAX_JITTER_S, MirrorState
from tests.mirror_story import BLOCK_SIZE, Story, Told, kept_waiting, streaming


async def test_cold_until_subscribed_then_one_snapshot_then_streaming() -> None:
    story = Story()
    for _ in range(5):
        story.change()
    async with Told(story):
        await story.settle()
        assert story.mirror.state is MirrorState.COLD
        assert story.mirror.totals.snapshots == 0
        await streaming(story)
        assert story.equal()
        for _ in range(20):
            story.mirror.batch(story.change())
            assert story.equal()
        assert story.mirror.totals.snapshots == 1


async def test_a_gap_costs_exactly_one_snapshot_however_many_batches_come_meanwhile() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        for _ in range(500):
            story.mirror.batch(story.change())
            await asyncio.sleep(0)
        assert story.mirror.state is MirrorState.SNAPSHOT
        story.snapshot_gate.set()
        await story.settle()
        assert story.equal()
        assert (story.mirror.totals.gaps, story.mirror.totals.snapshots) == (1, 2)
        assert story.mirror.totals.batches == 500


async def test_batches_during_a_snapshot_still_bring_the_newest_load() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        message = DeltaBatch.FromString(story.change())
        message.load.waiting = 7
        story.mirror.batch(message.SerializeToString())
        assert story.mirror.state is MirrorState.SNAPSHOT
        assert story.router.load("r").waiting == 7


async def test_what_is_known_stays_in_use_through_a_gap_and_not_through_a_new_epoch() -> None:
    story = Story()
    async with Told(story):
        for _ in range(10):
            story.change()
        await streaming(story)
        known = story.router.mirror("r").count
        await kept_waiting(story)
        assert story.router.mirror("r").count == known > 0
        story.snapshot_gate.set()
        await story.settle()
        assert story.equal()

        story.snapshot_gate.clear()
        story.mirror.batch(story.restart())
        assert story.router.mirror("r").count == 0
        assert story.mirror.totals.epochs == 1


async def test_what_a_silent_replica_held_goes_and_comes_back_with_its_next_batch() -> None:
    story = Story()
    async with Told(story):
        story.change()
        await streaming(story)
        for _ in range(2):
            story.mirror.forget("silent")
            assert story.mirror.state is MirrorState.COLD
            assert story.router.mirror("r").count == 0
        await story.settle()
        assert story.mirror.totals.snapshots == 1
        story.mirror.batch(story.change())
        await story.settle()
        assert story.equal()
        assert story.mirror.totals.snapshots == 2

        story.mirror.forget("silent")
        story.mirror.epoch_is(story.epoch)
        story.mirror.subscribed()  # it answers again, and no batch comes: Redis is away
        await story.settle()
        assert story.equal()

        story.snapshot_gate.clear()
        story.change()
        story.mirror.batch(story.change())
        story.mirror.forget("silent")  # it fell silent before it sent what it was asked for
        assert story.mirror.state is MirrorState.SNAPSHOT
        assert story.router.mirror("r").count == 0
        story.snapshot_gate.set()
        await story.settle()
        assert story.equal()


async def test_nothing_is_forgotten_while_a_snapshot_comes() -> None:
    story = Story()
    async with Told(story):
        story.change()
        await streaming(story)
        known = story.router.mirror("r").count
        await kept_waiting(story)
        story.mirror.forget("silent")
        assert story.router.mirror("r").count == known > 0
        story.snapshot_gate.set()
        await story.settle()
        assert story.equal()
        assert story.mirror.totals.mismatches == 0


async def test_late_batches_of_an_epoch_that_is_over_do_no_harm() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        late = [story.change() for _ in range(3)]
        story.mirror.batch(story.restart())
        await story.settle()
        for batch in late:
            story.mirror.batch(batch)
        story.mirror.batch(story.change())
        await story.settle()
        assert story.equal()
        assert story.mirror.totals.snapshots == 2


async def test_another_epoch_told_elsewhere_than_in_the_stream_is_taken_up() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        old = story.epoch
        story.restart()
        story.mirror.epoch_is(story.epoch)
        await story.settle()
        assert story.equal()
        story.mirror.epoch_is(story.epoch)
        story.mirror.epoch_is(old)  # a view that is late
        await story.settle()
        assert story.mirror.totals.snapshots == 2


async def test_a_digest_that_contradicts_the_mirror_is_a_doubt() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        wrong = DeltaBatch.FromString(story.change())
        wrong.digest ^= 1
        story.mirror.batch(wrong.SerializeToString())
        assert story.mirror.state is MirrorState.SNAPSHOT
        await story.settle()
        assert story.equal()
        assert (story.mirror.totals.mismatches, story.mirror.totals.snapshots) == (1, 2)


async def test_two_batches_of_one_number_are_a_doubt_and_one_that_comes_twice_is_none() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        for _ in range(3):
            true = story.change()
            story.mirror.batch(true)
            story.mirror.batch(true)
        assert story.mirror.state is MirrorState.STREAMING

        roots = [1 << 40, 1 << 41]
        for root in roots:
            story.mirror.batch(story.batch(story.blocks.store([root])))
        swap = [DeltaEvent(removed=Removed(last=root, count=1)) for root in roots]
        swap += [DeltaEvent(stored=Stored(hashes=[root])) for root in (roots[0] - 1, roots[1] + 1)]
        story.mirror.batch(story.batch(swap))  # the count is right, and the sum of the blocks
        assert story.mirror.state is MirrorState.STREAMING and not story.equal()
        story.seq -= 1
        story.mirror.batch(story.batch())
        assert story.mirror.state is MirrorState.SNAPSHOT
        await story.settle()
        assert story.equal()
        assert (story.mirror.totals.mismatches, story.mirror.totals.snapshots) == (1, 2)


async def test_a_snapshot_that_breaks_off_is_taken_again_after_growing_pauses() -> None:
    story = Story()
    for _ in range(10):
        story.change()
    story.snapshot_fails = 4
    async with Told(story):
        story.mirror.subscribed()
        for _ in range(6):
            await story.settle()
        assert story.equal()
        assert story.mirror.totals.failed_snapshots == 4
        assert story.mirror.totals.snapshots == 5
        pauses = story.sleeps[1:]
        assert len(pauses) == 4
        assert all(0.05 * 2**i <= pause <= 0.1 * 2**i for i, pause in enumerate(pauses))


async def test_a_snapshot_whose_digest_contradicts_it_is_taken_again() -> None:
    story = Story()
    for _ in range(10):
        story.change()
    story.snapshot_lies = 1
    async with Told(story):
        story.mirror.subscribed()
        for _ in range(3):
            await story.settle()
        assert story.equal()
        totals = story.mirror.totals
        assert (totals.mismatches, totals.failed_snapshots, totals.snapshots) == (1, 1, 2)


async def test_batches_that_cannot_be_read_leave_nothing_known_until_one_can() -> None:
    story = Story()
    async with Told(story):
        for _ in range(10):
            story.change()
        await streaming(story)
        for nonsense in (b"", b"\xff\xff", story.batch()[:-3]):
            story.mirror.batch(nonsense)
        assert story.mirror.state is MirrorState.COLD
        assert story.router.mirror("r").count == 0
        assert story.mirror.totals.refused == 3
        story.mirror.batch(story.change())
        await story.settle()
        assert story.equal()


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("block_size", 2 * BLOCK_SIZE, BLOCK_SIZE), ("hash_version", 99, radix_rs.HASH_VERSION)],
)
async def test_blocks_that_are_named_otherwise_are_refused_with_an_error(
    field: str, value: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        for _ in range(3):
            other = DeltaBatch.FromString(story.change())
            setattr(other, field, value)
            story.mirror.batch(other.SerializeToString())
        assert story.mirror.state is MirrorState.COLD
        assert story.mirror.totals.refused == 3
        (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert str(value) in line and f"expected {expected}" in line


async def test_held_batches_are_bounded_and_what_was_dropped_shows_as_a_gap() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        story.mirror.batch(story.change())
        await story.settle()
        padding = b"\x7a" + b"\x80\x80\x80\x02" + bytes(2**22)  # an unknown field of 4 MiB
        for _ in range(HELD_BYTES // 2**22 + 2):
            story.mirror.batch(story.change() + padding)
            assert story.mirror._held_bytes <= HELD_BYTES
        story.snapshot_gate.set()
        await story.settle()
        assert not story.equal()
        story.mirror.batch(story.batch())
        await story.settle()
        assert story.equal()
        assert (story.mirror.totals.gaps, story.mirror.totals.snapshots) == (2, 3)


def claiming(batch: bytes, **fields: int) -> bytes:
    """The batch with another epoch, seq, ... and a load that keeps every request away."""
    message = DeltaBatch.FromString(batch)
    for name, value in fields.items():
        setattr(message, name, value)
    message.load.draining = True
    return message.SerializeToString()


ABSURD = {
    "far ahead": {"seq": 2**64 - 1},
    "another life": {"epoch": 77, "seq": 1},
    "another life, far ahead": {"epoch": 77, "seq": 2**64 - 1},
}


@pytest.mark.parametrize("fields", ABSURD.values(), ids=ABSURD)
async def test_a_batch_with_an_absurd_claim_costs_one_snapshot_and_its_load_goes(
    fields: dict[str, int],
) -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.mirror.batch(claiming(story.batch(), **fields))
        for _ in range(20):
            await story.settle()
        assert story.mirror.state is MirrorState.STREAMING
        assert story.mirror.totals.snapshots == 2
        story.mirror.batch(story.change())
        assert story.equal()
        assert story.mirror.totals.snapshots == 2
        assert not story.router.load("r").draining


@pytest.mark.parametrize("fields", ABSURD.values(), ids=ABSURD)
async def test_absurd_batches_during_a_snapshot_cost_no_other_one(fields: dict[str, int]) -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        story.mirror.batch(story.change())
        await story.settle()
        for _ in range(10):
            story.mirror.batch(claiming(story.batch(), **fields))
        story.mirror.batch(story.change())
        story.snapshot_gate.set()
        for _ in range(5):
            await story.settle()
        assert story.mirror.state is MirrorState.STREAMING
        assert story.mirror.totals.snapshots == 2
        story.mirror.batch(story.change())  # what was lost meanwhile shows now
        for _ in range(5):
            await story.settle()
        assert story.equal()
        assert story.mirror.totals.snapshots == 3
        assert not story.router.load("r").draining


async def test_a_held_batch_that_contradicts_the_snapshot_is_asked_about_once() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        story.mirror.batch(story.change())
        await story.settle()
        story.mirror.batch(claiming(story.batch(), seq=story.seq, digest=1, count=1))
        story.seq -= 1  # the replica knows nothing of it
        story.snapshot_gate.set()
        for _ in range(20):
            await story.settle()
        assert story.mirror.state is MirrorState.STREAMING
        assert story.equal()
        assert story.mirror.totals.snapshots == 3


async def test_late_batches_find_their_place_after_the_snapshot() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        story.snapshot_gate.clear()
        story.change()
        story.mirror.batch(story.change())
        await story.settle()
        first, second = story.change(), story.change()
        story.mirror.batch(second)
        story.mirror.batch(first)
        story.snapshot_gate.set()
        await story.settle()
        assert story.equal()
        assert story.mirror.totals.snapshots == 2


async def test_doubts_that_follow_one_another_are_asked_about_ever_less_often() -> None:
    story = Story()
    async with Told(story):
        await streaming(story)
        for _ in range(12):
            story.mirror.batch(claiming(story.batch(), seq=2**64 - 1))
            await story.settle()
        assert story.mirror.totals.snapshots == 13
        assert max(story.sleeps[:1]) <= JITTER_S
        assert max(story.sleeps[-6:]) > 5 * JITTER_S
        assert max(story.sleeps) <= MAX_JITTER_S
        story.clock.advance(CALM_S)
        story.mirror.batch(claiming(story.batch(), seq=2**64 - 1))
        await story.settle()
        assert story.sleeps[-1] <= JITTER_S
