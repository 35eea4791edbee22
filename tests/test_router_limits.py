"""What a router takes: at the edge of each limit, and what is beyond it."""

import asyncio
import time

import grpc
import pytest
from grpc import aio

from proto.limits import (
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    MAX_PROMPT_TOKENS,
    MAX_TEXT_CHARACTERS,
    METADATA_ENTRY_BYTES,
)
from proto.prefixlb.v1.inference_pb2 import SamplingParams
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until
from tests.tiny_tokenizer import tiny_codec

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("no_thread_panics")]


def metadata_of(size_bytes: int) -> tuple[str, str]:
    """One entry that counts as so many bytes."""
    return "x-big", "y" * (size_bytes - len("x-big") - METADATA_ENTRY_BYTES)


async def count(router: LiveRouter, code: str, model: str = "tiny") -> float | None:
    line = f'prefixlb_router_requests_total{{code="{code}",model="{model}"}} '
    values = [part for part in (await router.metrics()).splitlines() if part.startswith(line)]
    return float(values[0].removeprefix(line)) if values else None


async def test_bytes_that_are_no_request_are_refused_and_counted(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        call = router.channel.unary_stream("/prefixlb.v1.Inference/Generate")(b"\x0a\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await count(router, "INVALID_ARGUMENT", model="") == 1


async def test_metadata_up_to_the_limit_reaches_the_replica_and_more_is_refused_at_once(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    largest = metadata_of(MAX_METADATA_BYTES)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        for _ in range(10):
            answer = await router.generate([1], metadata=[largest])
            assert answer.code is grpc.StatusCode.OK, answer.details
        served = [*r0.served, *r1.served]
        assert {each.metadata["x-big"] for each in served} == {largest[1]}

        for size_bytes in (MAX_METADATA_BYTES + 1, MAX_HEADER_BYTES - 1024):
            answer = await router.generate([1], metadata=[metadata_of(size_bytes)])
            assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
            assert answer.details == f"metadata has {size_bytes} bytes, at most 8192 are allowed"
        answer = await router.generate([1], metadata=[metadata_of(2 * MAX_HEADER_BYTES)])
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_HEADER_BYTES) in answer.details
        assert len(r0.served) + len(r1.served) == len(served)


async def test_a_prompt_of_the_most_token_ids_is_served_and_one_more_is_refused_at_once(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(store=False)
    largest = prompt_of(MAX_PROMPT_TOKENS)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        answer = await router.generate(largest)
        assert (answer.code, answer.details) == (grpc.StatusCode.OK, "")
        assert answer.usage.prompt_tokens == MAX_PROMPT_TOKENS
        answer = await router.generate([*largest, 1])
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
        assert answer.details == "tokens has 1048577 token ids, at most 1048576 are allowed"
        assert len(r0.served) == 1


async def test_a_message_beyond_the_limit_is_refused_with_the_limit(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        answer = await router.generate(text="x" * MAX_MESSAGE_BYTES)
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_MESSAGE_BYTES) in answer.details


async def test_what_cannot_be_sent_on_once_it_is_tokenised_is_refused_at_once(
    redis_url: str,
) -> None:
    """The tokens of a text may take more bytes than the text."""
    codec = tiny_codec()
    r0 = FakeReplica("r0", redis_url, codec=codec)
    fields = {
        "text": "x" * MAX_TEXT_CHARACTERS,
        "sampling": SamplingParams(stop=["y" * (14 * 2**20)]),
    }
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await until(lambda: router.has_codecs(r0))
        answer = await router.generate(**fields)
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "at most 16777216 are allowed" in answer.details
        assert not r0.served


async def test_small_requests_do_not_wait_for_the_tokens_of_large_ones(redis_url: str) -> None:
    codec = tiny_codec()
    r0 = FakeReplica("r0", redis_url, codec=codec)
    r0.script = Script(tokens=1, store=False)
    text = "the thin inn " * (MAX_TEXT_CHARACTERS // 4 // 13)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await until(lambda: router.has_codecs(r0))
        # More than there are threads for such work.
        large = [asyncio.create_task(router.generate(text=text)) for _ in range(8)]
        await asyncio.sleep(0.05)
        waits_s = []
        while not all(task.done() for task in large):
            began_s = time.monotonic()
            assert (await router.generate(text="the inn")).code is grpc.StatusCode.OK
            waits_s.append(time.monotonic() - began_s)
        assert all([(await task).code is grpc.StatusCode.OK for task in large])
    assert sorted(waits_s)[len(waits_s) * 9 // 10] < 0.2, (len(waits_s), max(waits_s))


async def test_an_answer_that_is_not_read_is_given_up(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=400, text="x" * 2**17 + "{}", store=False)
    async with replicas(r0), live_router(redis_url, write_stall_s=0.3) as router:
        await router.synced(r0)
        reads_later = router.inference.Generate(request_of([1, 2]))
        leaves = router.inference.Generate(request_of([1, 2]))
        for call in (reads_later, leaves):
            await call.read()
        await until(lambda: all(each.cancelled.is_set() for each in r0.served), 10)
        assert len(r0.served) == 2
        assert router.parts.router.in_flight("r0") == 0
        assert router.parts.admission.inflight == 0
        assert await count(router, "ABORTED") == 2
        leaves.cancel()
        with pytest.raises(aio.AioRpcError, match=r"not read for 0\.3 s") as caught:
            while await reads_later.read() is not aio.EOF:
                pass
        assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "router" not in {record.name.split(".")[0] for record in caplog.records}
