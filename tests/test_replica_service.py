"""What a replica says of itself, and how it ends when its engine does."""

import asyncio
import threading

import grpc
import pytest
import torch
from grpc import aio

from proto.prefixlb.v1.replica_pb2 import InfoRequest, SnapshotRequest, TextRules, TokenizerRequest
from proto.text import TextCodec
from radix_rs import HASH_VERSION, derive_hash_key, key_check
from replica.models.interface import Batch, SlotPool
from replica.models.llama import LlamaModel
from tests.replica_rig import HASH_KEY, replica_rig, token_ids, tokens_request
from tests.test_generate import numbers
from tests.tiny_model import CONFIG


async def test_info_names_model_limits_and_totals() -> None:
    async with replica_rig(page_size=4, replica_id="r", advertise_address="here:1") as rig:
        for _ in range(2):
            await rig.generate(tokens_request(numbers(50, 1), 3))
        info = await rig.info()
    assert (info.lease.replica_id, info.lease.address) == ("r", "here:1")
    assert (info.lease.model, info.lease.page_size, info.lease.block_size) == ("tiny", 4, 16)
    assert info.lease.hash_version == HASH_VERSION
    assert info.lease.key_check == key_check(HASH_KEY) != key_check(derive_hash_key(b"other"))
    assert (info.vocab_size, info.context_length) == (CONFIG.vocab_size, CONFIG.context_length)
    assert info.device == "cpu"
    assert (info.prompt_tokens, info.cached_tokens, info.prefilled_tokens) == (100, 48, 52)
    assert (info.count, info.load.total_slots) == (3, 4096)


async def test_an_empty_tree_is_a_snapshot_too() -> None:
    async with replica_rig() as rig:
        chunks = [chunk async for chunk in rig.admin.Snapshot(SnapshotRequest())]
        info = await rig.info()
    assert [chunk.last for chunk in chunks] == [True]
    batch = chunks[0].batch
    assert (batch.epoch, batch.count, batch.digest, len(batch.events)) == (
        *(info.lease.epoch, 0, 0, 0),
    )
    assert batch.seq >= 1


async def test_its_tokenizer_makes_the_same_tokens_elsewhere() -> None:
    async with replica_rig() as rig:
        pieces, rules = [], TextRules()
        async for part in rig.admin.Tokenizer(TokenizerRequest()):
            pieces.append(part.tokenizer_json)
            rules.MergeFrom(part.rules)
        codec = TextCodec(b"".join(pieces), rules)
        assert codec.digest() == (await rig.info()).lease.tokenizer_digest
        assert codec.encode("the hat in the attic") == rig.codec.encode("the hat in the attic")


async def test_a_client_that_drops_its_connection_leaves_nothing_behind() -> None:
    async with replica_rig() as rig:
        async with aio.insecure_channel(f"127.0.0.1:{rig.replica.port}") as channel:
            call = type(rig)(rig.replica, rig.codec, channel).inference.Generate(
                tokens_request(numbers(30, 1), 2000)
            )
            await call.read()
        await rig.settled()


async def test_a_reader_who_does_not_read_holds_up_nobody() -> None:
    async with replica_rig() as rig:
        idle = rig.inference.Generate(tokens_request(numbers(30, 1), 1000))
        assert len(token_ids(await rig.generate(tokens_request(numbers(30, 2), 20)))) == 20
        received = 0
        async for part in idle:
            received += len(part.token_ids)
        assert received == 1000


async def test_when_the_engine_dies_its_requests_fail_and_so_does_the_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forward(self: LlamaModel, batch: Batch, pool: SlotPool) -> torch.Tensor:
        raise RuntimeError("out of memory")

    async with replica_rig() as rig:
        monkeypatch.setattr(LlamaModel, "forward", forward)
        with pytest.raises(aio.AioRpcError) as caught:
            await rig.generate(tokens_request([1, 2, 3]))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RuntimeError, match="out of memory"):
            await rig.replica.failed()
        for call in (rig.generate(tokens_request([1])), rig.info()):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_info_and_draining_do_not_wait_for_the_step_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = LlamaModel.forward

    def forward(self: LlamaModel, batch: Batch, pool: SlotPool) -> torch.Tensor:
        entered.set()
        assert go_on.wait(30)
        return real(self, batch, pool)

    async with replica_rig() as rig:
        await rig.generate(tokens_request(numbers(50, 1), 3))
        known = await rig.info()
        monkeypatch.setattr(LlamaModel, "forward", forward)
        busy = asyncio.create_task(rig.generate(tokens_request(numbers(50, 2), 3)))
        await asyncio.to_thread(entered.wait)
        try:
            during = await rig.admin.Info(InfoRequest(), timeout=5)
            assert (during.count, during.digest) == (known.count, known.digest)
            assert during.lease.seq >= known.lease.seq > 0
            draining = asyncio.create_task(rig.replica.drain())
            await asyncio.sleep(0)  # lets it begin
            assert (await rig.admin.Info(InfoRequest(), timeout=5)).load.draining
        finally:
            go_on.set()
        await busy
        await draining


async def test_drain_refuses_what_is_new_and_waits_for_what_runs() -> None:
    async with replica_rig() as rig:
        answer = aiter(rig.inference.Generate(tokens_request(numbers(30, 1), 300)))
        received = len((await anext(answer)).token_ids)
        draining = asyncio.create_task(rig.replica.drain())
        await asyncio.sleep(0)  # lets it begin
        assert (await rig.info()).load.draining
        with pytest.raises(aio.AioRpcError) as caught:
            await rig.generate(tokens_request([1]))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not draining.done()
        async for part in answer:
            received += len(part.token_ids)
        await draining
    assert received == 300
