"""Inference.Generate over real gRPC, answered by the tiny model."""

import asyncio
import logging
import random
import threading
from array import array

import grpc
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from proto.limits import MAX_METADATA_BYTES, METADATA_ENTRY_BYTES
from proto.prefixlb.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    SamplingParams,
    TokenPrompt,
)
from proto.prefixlb.v1.replica_pb2 import FlushRequest
from proto.text import TextCodec
from replica.models.interface import Batch, SlotPool
from replica.models.llama import LlamaModel
from tests.replica_rig import ReplicaRig, replica_rig, token_ids, tokens_request
from tests.tiny_model import VOCAB_SIZE


def numbers(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


def with_stop(stop: str) -> GenerateRequest:
    return GenerateRequest(text="a", sampling=SamplingParams(max_tokens=1, stop=["y", stop]))


async def refused(rig: ReplicaRig, request: GenerateRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await rig.generate(request)
    return caught.value.code(), caught.value.details() or ""


async def test_text_chat_and_tokens_are_answered_with_usage_and_reason() -> None:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    chat = ChatPrompt(messages=[ChatMessage(role="user", content="the hat")])
    async with replica_rig() as rig:
        for request in (
            GenerateRequest(text="the hat", sampling=sampling),
            GenerateRequest(chat=chat, sampling=sampling),
            GenerateRequest(tokens=TokenPrompt(ids=[5, 6, 7]), sampling=sampling),
        ):
            parts = await rig.generate(request)
            assert len(token_ids(parts)) == 5
            assert [part.HasField("usage") for part in parts].count(True) == 1
            assert parts[-1].finish_reason == FINISH_REASON_LENGTH
            usage = parts[-1].usage
            assert usage.prompt_tokens > 0
            assert usage.completion_tokens == 5
        assert usage.prompt_tokens == 3


async def test_greedy_tokens_are_the_same_cached_flushed_and_beside_others() -> None:
    prompt = numbers(100, seed=1)
    async with replica_rig(chunk_size=32) as rig:
        alone = await rig.generate(tokens_request(prompt, 12))
        again = await rig.generate(tokens_request(prompt, 12))
        beside = await asyncio.gather(
            rig.generate(tokens_request(prompt, 12, cache_salt="apart")),
            *(rig.generate(tokens_request(numbers(70, seed), 20)) for seed in range(5)),
        )
        await rig.admin.Flush(FlushRequest())
        flushed = await rig.generate(tokens_request(prompt, 12))
    assert [parts[-1].usage.cached_tokens for parts in (alone, again, beside[0], flushed)] == [
        *(0, 99, 0, 0),
    ]
    assert token_ids(alone) == token_ids(again) == token_ids(beside[0]) == token_ids(flushed)


async def test_prompts_that_cannot_be_served_say_why() -> None:
    async with replica_rig(slots=100) as rig:
        cases = [
            (GenerateRequest(), "no prompt"),
            (GenerateRequest(text=""), "empty"),
            (GenerateRequest(tokens=TokenPrompt()), "empty"),
            (GenerateRequest(chat=ChatPrompt()), "no messages"),
            (tokens_request([VOCAB_SIZE]), f"{VOCAB_SIZE}"),
            (tokens_request(numbers(101, 1)), "100 slots"),
            (tokens_request(numbers(2048, 1)), "2048"),
            (tokens_request([1], 0), "max_tokens is 0"),
            (GenerateRequest(text="a", sampling=SamplingParams(top_p=2.0)), "top_p is 2"),
            (GenerateRequest(text="a", sampling=SamplingParams(stop=[""])), "stop text is empty"),
            (with_stop("x" * 257), "257 characters"),
        ]
        for request, reason in cases:
            code, details = await refused(rig, request)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert reason in details
        assert await rig.generate(with_stop("x" * 256))
        code, details = await refused(rig, GenerateRequest(text="a", model="other"))
        assert (code, "other" in details) == (grpc.StatusCode.NOT_FOUND, True)


async def test_answers_longer_than_context_or_pool_end_by_length_there() -> None:
    async with replica_rig(slots=100) as rig:
        parts = await rig.generate(tokens_request(numbers(90, 1), 1000))
        assert len(token_ids(parts)) == 11
        assert parts[-1].finish_reason == FINISH_REASON_LENGTH


async def test_a_stop_text_ends_the_answer_before_it() -> None:
    prompt = numbers(20, seed=7)
    async with replica_rig() as rig:
        free = await rig.generate(tokens_request(prompt, 40))
        text = "".join(part.text for part in free)
        stop = text[10:13]
        request = tokens_request(prompt, 40)
        request.sampling.stop.append(stop)
        parts = await rig.generate(request)
        await rig.settled()
    assert "".join(part.text for part in parts) == text[: text.index(stop)]
    assert parts[-1].finish_reason == FINISH_REASON_STOP
    assert parts[-1].usage.completion_tokens == len(token_ids(parts)) < 40


async def test_the_same_seed_gives_the_same_sampled_tokens() -> None:
    request = tokens_request(numbers(20, seed=3), 20)
    request.sampling.temperature = 1.0
    request.sampling.seed = 11
    async with replica_rig() as rig:
        first, second = await rig.generate(request), await rig.generate(request)
        request.sampling.seed = 12
        other = await rig.generate(request)
    assert token_ids(first) == token_ids(second) != token_ids(other)


async def test_namespaces_share_nothing() -> None:
    prompt = numbers(64, seed=4)
    async with replica_rig() as rig:
        for extra_key, cache_salt in (("", ""), ("x", ""), ("", "x"), ("a", "bc"), ("ab", "c")):
            request = tokens_request(prompt, 1, extra_key=extra_key, cache_salt=cache_salt)
            assert (await rig.generate(request))[-1].usage.cached_tokens == 0
            assert (await rig.generate(request))[-1].usage.cached_tokens == 63


async def test_two_hundred_requests_with_cancelled_and_expired_ones_leave_nothing() -> None:
    rng = random.Random(9)
    codes: dict[grpc.StatusCode, int] = dict.fromkeys(grpc.StatusCode, 0)
    async with replica_rig(slots=2000, max_running=32, chunk_size=64) as rig:

        async def one(index: int) -> None:
            prompt = numbers(rng.randrange(1, 60), seed=index % 7) + numbers(5, seed=index)
            cancelled, expiring = index % 10 == 0, index % 10 == 1
            max_tokens = 1900 if cancelled or expiring else 16  # seconds, or as good as none
            timeout_s = rng.uniform(0.01, 0.3) if expiring else None
            call = rig.inference.Generate(tokens_request(prompt, max_tokens), timeout=timeout_s)
            if cancelled:
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.5), call.cancel)
            try:
                async for _ in call:
                    pass
            except aio.AioRpcError:
                pass
            except asyncio.CancelledError:
                assert call.cancelled()
            codes[await call.code()] += 1

        await asyncio.gather(*(one(index) for index in range(200)))
        await rig.settled()
        total = rig.replica.metrics.registry.get_sample_value
        labels = {"model": "tiny"}
        assert total("prefixlb_replica_requests_in_flight", labels) == 0
        assert total("prefixlb_replica_running_requests", labels) == 0
        assert total("prefixlb_replica_waiting_requests", labels) == 0
        own = {**labels, "state": "own"}
        assert total("prefixlb_replica_slots", own) == 0
        assert total("prefixlb_replica_slots", {**labels, "state": "protected"}) == 0
        served = {
            code: total("prefixlb_replica_requests_total", {**labels, "code": code.name}) or 0
            for code in grpc.StatusCode
        }
    assert {code: count for code, count in codes.items() if count} == {
        grpc.StatusCode.OK: 160,
        grpc.StatusCode.CANCELLED: 20,
        grpc.StatusCode.DEADLINE_EXCEEDED: 20,
    }
    assert served[grpc.StatusCode.OK] == 160
    ended = served[grpc.StatusCode.CANCELLED] + served[grpc.StatusCode.DEADLINE_EXCEEDED]
    assert 0 < ended <= 40  # those that ended before they arrived are not seen at all
    assert sum(served.values()) == 160 + ended


async def test_requests_beyond_max_waiting_are_refused_as_overload() -> None:
    async with replica_rig(max_waiting=4, max_running=1) as rig:
        results = await asyncio.gather(
            *(rig.generate(tokens_request(numbers(50, seed), 30)) for seed in range(12)),
            return_exceptions=True,
        )
        codes = [each.code() for each in results if isinstance(each, aio.AioRpcError)]
        assert codes
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(await rig.generate(tokens_request([1, 2], 3))) > 0


async def test_overload_is_said_before_a_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = LlamaModel.forward

    def forward(self: LlamaModel, batch: Batch, pool: SlotPool) -> torch.Tensor:
        entered.set()
        assert go_on.wait(30)
        return real(self, batch, pool)

    async with replica_rig(max_waiting=1) as rig:
        monkeypatch.setattr(LlamaModel, "forward", forward)
        first = asyncio.create_task(rig.generate(tokens_request([1, 2, 3], 2)))
        await asyncio.to_thread(entered.wait)
        try:
            code, _ = await refused(rig, tokens_request([VOCAB_SIZE]))  # invalid, if it were read
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            go_on.set()
        await first


async def test_a_request_that_is_being_read_has_a_place_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    real = TextCodec.prompt_ids

    def prompt_ids(self: TextCodec, message: GenerateRequest) -> "array[int]":
        reading.set()
        assert go_on.wait(30)
        return real(self, message)

    async with replica_rig(max_waiting=1) as rig:
        monkeypatch.setattr(TextCodec, "prompt_ids", prompt_ids)
        first = asyncio.create_task(rig.generate(GenerateRequest(text="the hat")))
        await asyncio.to_thread(reading.wait)
        try:
            code, _ = await refused(rig, GenerateRequest(text="the attic"))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        finally:
            go_on.set()
        assert await first


async def test_a_request_id_is_cut_and_quoted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="replica")
    async with replica_rig() as rig:
        await rig.generate(tokens_request([1], 1, request_id="a\nb" + "x" * 200))
    (line,) = [each for each in caplog.messages if each.startswith("answered ")]
    assert line.startswith("answered request='a\\nb" + "x" * 125 + "' ")


async def test_bytes_that_are_no_request_are_an_invalid_argument_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with replica_rig() as rig:
        call = rig.channel.unary_stream("/prefixlb.v1.Inference/Generate")(b"\x0a\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        count = rig.replica.metrics.requests.labels("tiny", "INVALID_ARGUMENT")
        assert count._value.get() == 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_replica_takes_all_the_metadata_a_router_may_send() -> None:
    async with replica_rig() as rig:
        for _ in range(20):  # gRPC refuses by chance between two limits of its own
            metadata = aio.Metadata(("x", "y" * (MAX_METADATA_BYTES - METADATA_ENTRY_BYTES - 1)))
            call = rig.inference.Generate(tokens_request([1], 1), metadata=metadata)
            assert [part async for part in call]


async def test_unknown_fields_are_ignored() -> None:
    async with replica_rig() as rig:
        unknown = tokens_request([1, 2, 3], 2).SerializeToString() + b"\xfa\x3e\x03abc"
        call = rig.channel.unary_stream("/prefixlb.v1.Inference/Generate")
        parts = [part async for part in call(unknown)]
        assert parts


async def test_a_client_that_knows_only_reflection_lists_and_calls_generate() -> None:
    async with replica_rig() as rig:
        stub = reflection_pb2_grpc.ServerReflectionStub(rig.channel)

        async def ask(
            request: reflection_pb2.ServerReflectionRequest,
        ) -> reflection_pb2.ServerReflectionResponse:
            async for answer in stub.ServerReflectionInfo(iter([request])):
                return answer
            raise AssertionError("no answer")

        listed = await ask(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in listed.list_services_response.service}
        assert {"prefixlb.v1.Inference", "prefixlb.v1.Replica", "grpc.health.v1.Health"} <= names
        pool = descriptor_pool.DescriptorPool()
        symbol = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="prefixlb.v1.Inference"
        )
        found = await ask(symbol)
        for serialized in found.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(serialized))
        method = pool.FindServiceByName("prefixlb.v1.Inference").methods_by_name["Generate"]
        request_class = message_factory.GetMessageClass(method.input_type)
        response_class = message_factory.GetMessageClass(method.output_type)
        call = rig.channel.unary_stream(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        parts = [part async for part in call(request_class(text="the hat"))]
        assert parts[-1].usage.prompt_tokens > 0


async def test_with_the_cache_disabled_the_tokens_are_the_same_and_none_is_reused() -> None:
    prompt = numbers(100, seed=1)
    answers = []
    for disable_cache in (False, True):
        async with replica_rig(disable_cache=disable_cache) as rig:
            for _ in range(2):
                parts = await rig.generate(tokens_request(prompt, 8))
                answers.append((parts[-1].usage.cached_tokens, token_ids(parts)))
            await rig.settled()
            assert ((await rig.info()).load.evictable_slots == 0) == disable_cache
    assert [cached for cached, _ in answers] == [0, 99, 0, 0]
    assert all(tokens == answers[0][1] for _, tokens in answers)


async def test_a_requests_priority_keeps_what_it_stores_under_the_priority_policy() -> None:
    async with replica_rig(slots=256, eviction_policy="priority") as rig:
        for seed, priority in ((1, 5), (2, 0), (3, 0)):
            await rig.generate(tokens_request(numbers(100, seed), 1, priority=priority))
        parts = await rig.generate(tokens_request(numbers(100, seed=1), 1))
        assert parts[-1].usage.cached_tokens == 99
