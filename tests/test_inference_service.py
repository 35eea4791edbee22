"""Generate at its edges: clients that go or do not read, and errors that nobody foresaw."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from proto.limits import MAX_METADATA_BYTES, METADATA_ENTRY_BYTES
from proto.prefixlb.v1.inference_pb2 import GenerateResponse
from replica.engine_thread import EngineThread
from replica.inference_service import InferenceService
from replica.metrics import Metrics
from replica.request_reader import RequestReader
from tests.engine_rig import EngineRig
from tests.replica_rig import tokens_request
from tests.tiny_model import tiny_model


class Client:
    """The context of a call whose writes do what `write` does."""

    def __init__(
        self,
        write: Callable[[], object],
        left_s: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._write = write
        self._left_s = left_s
        self._metadata = metadata
        self.aborted: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, details: str, metadata: object) -> None:
        self.aborted = code, details

    def time_remaining(self) -> float | None:
        return self._left_s

    async def write(self, message: GenerateResponse) -> None:
        outcome = self._write()
        if isinstance(outcome, asyncio.Event):
            await outcome.wait()


@asynccontextmanager
async def service() -> AsyncIterator[tuple[InferenceService, Metrics]]:
    rig = EngineRig()
    engine = EngineThread(rig.engine, max_waiting=4)
    reader = RequestReader(
        codec=tiny_model()[1],
        config=rig.model.config,
        model_id="fake",
        num_slots=rig.pool.num_slots,
        seeds=random.Random(0),
    )
    engine.start()
    try:
        yield InferenceService(engine, reader, rig.metrics), rig.metrics
    finally:
        await engine.stop()


def count(metrics: Metrics, code: str) -> float | None:
    labels = {"model": "fake", "code": code}
    return metrics.registry.get_sample_value("prefixlb_replica_requests_total", labels)


def failing(error: Exception) -> Callable[[], object]:
    def write() -> object:
        raise error

    return write


@pytest.mark.parametrize(
    ("left_s", "code"), [(None, "CANCELLED"), (9.0, "CANCELLED"), (0.01, "DEADLINE_EXCEEDED")]
)
async def test_a_write_to_a_client_that_has_gone_ends_the_call_as_cancelled(
    left_s: float | None, code: str
) -> None:
    client: Any = Client(failing(aio.InternalError("the call is over")), left_s)
    async with service() as (inference, metrics):
        with pytest.raises(asyncio.CancelledError):  # which gRPC does not log
            await inference.Generate(tokens_request([1, 2, 3], 4), client)
    assert count(metrics, code) == 1


async def test_an_error_that_nobody_foresaw_is_counted_as_what_grpc_answers() -> None:
    client: Any = Client(failing(ZeroDivisionError()))
    async with service() as (inference, metrics):
        with pytest.raises(ZeroDivisionError):
            await inference.Generate(tokens_request([1, 2, 3], 4), client)
    assert count(metrics, "UNKNOWN") == 1


async def test_metadata_up_to_the_limit_is_taken_and_more_is_refused() -> None:
    def sent(size_bytes: int) -> Client:
        value = "y" * (size_bytes - len("x-big") - METADATA_ENTRY_BYTES)
        ours = ("user-agent", "grpc"), ("grpc-accept-encoding", "gzip")  # of gRPC: do not count
        return Client(list, metadata=(("x-big", value), *ours))

    largest: Any = sent(MAX_METADATA_BYTES)
    larger: Any = sent(MAX_METADATA_BYTES + 1)
    async with service() as (inference, metrics):
        await inference.Generate(tokens_request([1, 2, 3], 4), largest)
        await inference.Generate(tokens_request([1, 2, 3], 4), larger)
    assert (largest.aborted, count(metrics, "OK")) == (None, 1)
    assert larger.aborted == (
        grpc.StatusCode.INVALID_ARGUMENT,
        f"metadata has {MAX_METADATA_BYTES + 1} bytes, at most {MAX_METADATA_BYTES} are allowed",
    )


async def test_an_answer_is_under_way_until_a_slow_reader_has_taken_its_end() -> None:
    read_on = asyncio.Event()
    client: Any = Client(lambda: read_on)
    async with service() as (inference, _):
        call = asyncio.create_task(inference.Generate(tokens_request([1, 2, 3], 4), client))
        await asyncio.sleep(0)  # lets it begin
        idle = asyncio.create_task(inference.idle())
        await asyncio.wait((idle,), timeout=0.2)  # the engine is long done
        assert not idle.done()
        read_on.set()
        await asyncio.gather(call, idle)
