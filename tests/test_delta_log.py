"""Batches between engine and publisher: no holes but those that show."""

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest

from proto.prefixlb.v1.delta_pb2 import (
    PREFILL_ORDER_SHORTEST,
    Cleared,
    DeltaBatch,
    DeltaEvent,
    Load,
    Removed,
)
from radix_rs import Deltas
from replica.delta_log import Batch, DeltaLog
from replica.metrics import Metrics
from replica.publisher import Publisher
from tests.engine_rig import EngineRig
from tests.fakes import FakeClock


def deltas(number: int) -> Deltas:
    """As the tree would say: one event, told apart by `number`, also its count and digest."""
    event = DeltaEvent(removed=Removed(last=number, count=1))
    batch = DeltaBatch(events=[event])
    made = SimpleNamespace(events=batch.SerializeToString(), count=number, digest=number)
    return cast(Deltas, made)


def make_log(max_backlog_bytes: int = 1 << 20) -> DeltaLog:
    return DeltaLog(block_size=16, max_backlog_bytes=max_backlog_bytes)


def taken(log: DeltaLog, *, heartbeat: bool = False) -> DeltaBatch | None:
    batch = log.take(heartbeat=heartbeat)
    if batch is None:
        return None
    log.sent(batch)
    return DeltaBatch.FromString(batch.payload)


def events_of(batch: DeltaBatch | None) -> list[int]:
    assert batch is not None
    return [event.removed.last for event in batch.events]


def test_the_first_batch_announces_the_epoch_and_seq_counts_from_one() -> None:
    log = make_log()
    first = taken(log)
    assert first is not None
    assert (first.seq, len(first.events), first.block_size) == (1, 0, 16)
    assert first.epoch == log.position[0] != 0
    assert taken(log) is None
    log.append(deltas(7))
    second = taken(log)
    assert second is not None
    assert (second.epoch, second.seq, second.count, second.digest) == (first.epoch, 2, 7, 7)


def test_all_that_happened_since_the_last_batch_is_in_the_next_in_order() -> None:
    log = make_log()
    taken(log)
    for number in (1, 2, 3):
        log.append(deltas(number))
    batch = taken(log)
    assert events_of(batch) == [1, 2, 3]
    assert batch is not None and batch.count == 3


def test_a_batch_that_was_not_taken_comes_again_unchanged_before_newer_ones() -> None:
    log = make_log()
    taken(log)
    log.append(deltas(1))
    refused = log.take(heartbeat=False)
    log.append(deltas(2))
    assert log.take(heartbeat=False) is refused
    assert events_of(taken(log)) == [1]
    assert events_of(taken(log)) == [2]


def test_a_heartbeat_is_made_only_when_there_is_nothing_else() -> None:
    log = make_log()
    taken(log)
    log.append(deltas(1))
    assert events_of(taken(log, heartbeat=True)) == [1]
    heartbeat = taken(log, heartbeat=True)
    assert heartbeat is not None
    assert (heartbeat.seq, len(heartbeat.events), heartbeat.count) == (3, 0, 1)


def test_a_snapshot_stands_after_all_that_was_appended() -> None:
    log = make_log()
    epoch = log.seal().epoch
    assert log.position == (epoch, 1)
    log.append(deltas(1))
    for _ in range(2):
        position = log.seal()
        assert (position.epoch, position.seq, position.count, position.digest) == (epoch, 2, 1, 1)
    log.append(deltas(2))
    assert [taken(log), events_of(taken(log)), events_of(taken(log))][1:] == [[1], [2]]
    assert log.position == (epoch, 3)


def test_an_overflowing_backlog_is_dropped_and_the_next_seq_shows_the_gap() -> None:
    log = make_log(max_backlog_bytes=100)
    taken(log)
    dropped = 0
    number = 0
    while not dropped:
        number += 1
        dropped = log.append(deltas(number))
    assert dropped > 100
    assert log.backlog_bytes == 0
    log.append(deltas(number + 1))
    batch = taken(log)
    assert events_of(batch) == [number + 1]
    assert batch is not None and batch.seq == 3


def test_a_batch_dropped_while_it_is_sent_is_not_missed_twice() -> None:
    log = make_log(max_backlog_bytes=60)
    taken(log)
    log.append(deltas(1))
    sending = log.take(heartbeat=False)
    assert sending is not None
    while not log.append(deltas(2)):
        pass
    log.append(deltas(3))
    log.sent(sending)
    assert events_of(taken(log)) == [3]
    assert log.backlog_bytes == 0


def test_a_new_epoch_forgets_the_old_one() -> None:
    log = make_log()
    taken(log)
    log.append(deltas(5))
    old = log.position[0]
    epoch = log.new_epoch()
    assert epoch not in (0, old)
    batch = taken(log)
    assert batch is not None
    assert (batch.epoch, batch.seq, len(batch.events), batch.count) == (epoch, 1, 0, 0)


def test_an_urgent_load_leaves_at_once_another_waits_for_the_next_batch() -> None:
    log = make_log()
    taken(log)
    log.report(Load(running=1), urgent=False)
    assert taken(log) is None
    log.report(Load(running=2), urgent=True)
    batch = taken(log)
    assert batch is not None and batch.load.running == 2


def test_an_urgent_load_is_not_lost_behind_the_batch_being_sent() -> None:
    log = make_log()
    sending = log.take(heartbeat=False)
    assert sending is not None
    log.report(Load(running=1), urgent=True)
    log.sent(sending)
    batch = taken(log)
    assert batch is not None and batch.load.running == 1
    assert taken(log) is None


def test_draining_is_told_at_once_and_by_every_later_load() -> None:
    log = make_log()
    log.report(Load(running=3), urgent=True)
    taken(log)
    log.drain()
    batch = taken(log)
    assert batch is not None
    assert (batch.load.running, batch.load.draining) == (3, True)
    log.report(Load(running=2), urgent=True)
    batch = taken(log)
    assert batch is not None and batch.load.draining


def test_the_first_batch_of_an_idle_replica_tells_its_room_and_order() -> None:
    batch = taken(EngineRig(slots=77).delta_log)
    assert batch is not None
    assert (batch.load.free_slots, batch.load.total_slots) == (77, 77)
    assert batch.load.order == PREFILL_ORDER_SHORTEST


class Wire:
    """Takes batches while it is up."""

    def __init__(self) -> None:
        self.up = True
        self.batches: list[DeltaBatch] = []

    def send(self, batch: Batch) -> bool:
        if self.up:
            self.batches.append(DeltaBatch.FromString(batch.payload))
        return self.up


def make_publisher(metrics: Metrics) -> tuple[DeltaLog, Wire, FakeClock, Publisher]:
    log, wire, clock = make_log(), Wire(), FakeClock()
    return log, wire, clock, Publisher(log, wire.send, metrics, clock=clock)


def test_an_idle_replica_sends_a_heartbeat_every_second() -> None:
    _, wire, clock, publisher = make_publisher(EngineRig().metrics)
    for _ in range(30):
        publisher.step()
        clock.advance(0.1)
    assert [batch.seq for batch in wire.batches] == [1, 2, 3]


def test_a_backlog_goes_out_whole_and_in_order_once_the_wire_is_back() -> None:
    log, wire, clock, publisher = make_publisher(EngineRig().metrics)
    publisher.step()
    wire.up = False
    for number in range(1, 6):
        log.append(deltas(number))
        assert not publisher.step()
        clock.advance(3.0)
    wire.up = True
    assert publisher.step()
    assert [batch.seq for batch in wire.batches] == [1, 2, 3]
    assert [events_of(batch) for batch in wire.batches] == [[], [1], [2, 3, 4, 5]]


async def test_a_publisher_that_ends_has_sent_everything() -> None:
    log, wire, _, publisher = make_publisher(EngineRig().metrics)
    async with publisher.running():
        log.append(deltas(1))
        log.report(Load(running=5), urgent=False)
    assert [number for batch in wire.batches for number in events_of(batch)] == [1]
    assert wire.batches[-1].load.running == 5


@pytest.mark.parametrize("sending_s", [0.0, 0.003])
async def test_changes_every_millisecond_leave_in_batches_ten_milliseconds_apart(
    sending_s: float,
) -> None:
    log, begun_s = make_log(), list[float]()

    def send(batch: Batch) -> bool:
        begun_s.append(time.monotonic())
        time.sleep(sending_s)
        return True

    publisher = Publisher(log, send, EngineRig().metrics)
    first_s = time.monotonic()
    async with publisher.running():
        while (now_s := time.monotonic()) < first_s + 0.3:
            log.append(deltas(1))
            await asyncio.sleep(0.001)
    # Those sent at its end wait for nothing.
    assert 3 <= sum(each < now_s for each in begun_s) <= (now_s - first_s) / 0.010 + 1


async def test_a_publisher_that_dies_ends_the_replica_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def send(batch: Batch) -> bool:
        raise ZeroDivisionError

    publisher = Publisher(make_log(), send, EngineRig().metrics)
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(5), publisher.running():
            await asyncio.Event().wait()
    assert caught.group_contains(ZeroDivisionError)
    assert "the publisher died" in caplog.text


def test_a_flush_ends_the_epoch_and_clears() -> None:
    rig = EngineRig()
    rig.generate(list(range(40)), 2)
    old = rig.delta_log.position[0]
    epoch, dropped = rig.engine.flush()
    assert epoch != old
    assert dropped == 41
    batch = taken(rig.delta_log)
    assert batch is not None
    assert (batch.epoch, batch.seq, batch.count, batch.digest) == (epoch, 1, 0, 0)
    assert [event.WhichOneof("event") for event in batch.events] == ["cleared"]
    assert batch.events[0].cleared == Cleared()
