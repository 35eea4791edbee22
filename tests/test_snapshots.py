"""Snapshots for many at once: few copies of the tree, and a place for who reads."""

import asyncio
import threading
from typing import NoReturn

import grpc
import pytest
import torch
from grpc import aio

from proto.errors import Overloaded, StalledReader
from proto.prefixlb.v1.replica_pb2 import SnapshotResponse
from replica.engine import Engine, Snapshot
from replica.engine_thread import EngineThread
from replica.models.interface import Batch, SlotPool
from replica.models.llama import LlamaModel
from replica.snapshots import MAX_SENT, MAX_WAITING, Snapshots
from tests.engine_rig import EngineRig
from tests.replica_rig import replica_rig, tokens_request
from tests.test_generate import numbers


async def test_many_who_ask_share_copies_of_the_tree_and_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = 0
    copy, forward = Engine.snapshot, LlamaModel.forward
    entered, go_on = threading.Event(), threading.Event()

    def counted(self: Engine) -> Snapshot:
        nonlocal copies
        copies += 1
        return copy(self)

    def held(self: LlamaModel, batch: Batch, pool: SlotPool) -> torch.Tensor:
        entered.set()
        assert go_on.wait(30)
        return forward(self, batch, pool)

    async with replica_rig() as rig:
        await rig.generate(tokens_request(numbers(500, 1), 3))
        monkeypatch.setattr(Engine, "snapshot", counted)
        monkeypatch.setattr(LlamaModel, "forward", held)
        step = asyncio.create_task(rig.generate(tokens_request(numbers(50, 2), 3)))
        await asyncio.to_thread(entered.wait)
        asked = [asyncio.create_task(rig.snapshot()) for _ in range(MAX_SENT + MAX_WAITING + 5)]
        try:
            refused: set[asyncio.Task[list[SnapshotResponse]]] = set()
            async with asyncio.timeout(20):
                while len(refused) < 5:
                    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                    refused |= done
                    asked = [task for task in asked if task not in done]
        finally:
            go_on.set()
        answers = await asyncio.gather(*asked)
        await step
    assert copies <= 2
    assert len(refused) == 5
    for task in refused:
        error = task.exception()
        assert isinstance(error, aio.AioRpcError)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"at most {MAX_SENT + MAX_WAITING} may be" in str(error.details())
    for (message,) in answers:
        assert message.last
        blocks = sum(len(event.stored.hashes) for event in message.batch.events)
        assert blocks == message.batch.count >= 31


class Rig:
    """Snapshots of an engine, sent to one at a time while another one waits."""

    def __init__(self) -> None:
        self.engine = EngineThread(EngineRig().engine, max_waiting=1)
        self.snapshots = Snapshots(
            self.engine, block_size=16, max_sent=1, max_waiting=1, write_stall_s=0.05
        )
        self.read: list[SnapshotResponse] = []

    async def reads(self, message: SnapshotResponse) -> None:
        self.read.append(message)


async def never_reads(message: SnapshotResponse) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def test_who_does_not_read_makes_way_for_who_waits() -> None:
    rig = Rig()
    rig.engine.start()
    try:
        stalled = asyncio.create_task(rig.snapshots.send(never_reads))
        waits = asyncio.create_task(rig.snapshots.send(rig.reads))
        await asyncio.sleep(0)  # both ask
        with pytest.raises(Overloaded, match="2 snapshots"):
            await rig.snapshots.send(rig.reads)
        with pytest.raises(StalledReader, match=r"0\.05 s"):
            await stalled
        await waits
        assert [message.last for message in rig.read] == [True]
    finally:
        await rig.engine.stop()


async def test_who_leaves_does_not_have_another_copy_made() -> None:
    rig = Rig()
    made = 0
    copy, go_on = rig.engine.engine.snapshot, threading.Event()

    def counted() -> Snapshot:
        nonlocal made
        made += 1
        return copy()

    rig.engine.engine.snapshot = counted  # type: ignore[method-assign]
    rig.engine.start()
    try:
        step = asyncio.create_task(rig.engine.call(lambda: go_on.wait(30)))
        for _ in range(5):
            leaves = asyncio.create_task(rig.snapshots.send(rig.reads))
            await asyncio.sleep(0.01)
            leaves.cancel()
            await asyncio.wait((leaves,))
        waits = asyncio.create_task(rig.snapshots.send(rig.reads))
        await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.gather(step, waits)
        assert made <= 2
    finally:
        go_on.set()
        await rig.engine.stop()


async def test_a_copy_that_is_being_sent_is_not_for_who_asks_later() -> None:
    rig = Rig()
    rig.engine.start()
    try:
        gate = asyncio.Event()

        async def reads_late(message: SnapshotResponse) -> None:
            rig.read.append(message)
            gate.set()
            await asyncio.sleep(0.01)

        first = asyncio.create_task(rig.snapshots.send(reads_late))
        await gate.wait()
        await rig.engine.call(rig.engine.engine.flush)
        await rig.snapshots.send(rig.reads)
        await first
        old, new = rig.read
        assert old.batch.epoch != new.batch.epoch == rig.engine.position().epoch
    finally:
        await rig.engine.stop()
