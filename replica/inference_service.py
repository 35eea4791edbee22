"""Inference.Generate: a request in, its answer out as it is computed."""

import asyncio
import logging

import grpc
from grpc import aio

from proto.errors import LBError, abort, code_of_departure
from proto.limits import check_metadata
from proto.metadata import passed
from proto.prefixlb.v1.inference_pb2 import (
    FINISH_REASON_UNSPECIFIED,
    GenerateRequest,
    GenerateResponse,
    Usage,
)
from proto.prefixlb.v1.inference_pb2_grpc import InferenceServicer
from replica.engine_thread import EngineThread
from replica.metrics import Metrics
from replica.request import Request
from replica.request_reader import RequestReader
from replica.traces import Trace, Traces

log = logging.getLogger(__name__)

Context = aio.ServicerContext[GenerateRequest, GenerateResponse]


class InferenceService(InferenceServicer):
    """Requests of the event loop, answered by the engine's thread."""

    def __init__(
        self,
        engine: EngineThread,
        reader: RequestReader,
        metrics: Metrics,
        traces: Traces | None = None,
    ) -> None:
        """`traces`: None if no request is traced."""
        self._engine = engine
        self._reader = reader
        self._metrics = metrics
        self._traces = traces
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when no call is under way: every answer has been written to its end."""
        await self._idle.wait()

    # A coroutine, which gRPC takes too: unlike a generator it is left in the moment the call ends.
    async def Generate(self, request: GenerateRequest, context: Context) -> None:  # type: ignore[override]
        code = grpc.StatusCode.UNKNOWN  # what grpc makes of an error that is none of ours
        metadata = context.invocation_metadata()
        trace = self._traces.begin(metadata) if self._traces else None
        self._calls += 1
        self._idle.clear()
        self._metrics.in_flight.inc()
        try:
            await self._generate(request, context, trace)
            code = grpc.StatusCode.OK
        except LBError as error:
            code = error.code
            await abort(context, error.code, str(error))
        except (asyncio.CancelledError, aio.InternalError) as error:
            # Either way the client has gone: a write to it may fail before we are told.
            code = code_of_departure(context)
            raise asyncio.CancelledError from error
        finally:
            self._metrics.in_flight.dec()
            self._metrics.count_request(code.name)
            if self._traces and trace:
                self._traces.end(trace, code)
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _generate(
        self, message: GenerateRequest, context: Context, trace: Trace | None
    ) -> None:
        check_metadata(passed(context.invocation_metadata()))
        with self._engine.place():
            request = await self._reader.read(message, context.time_remaining())
            if self._traces and trace:
                self._traces.queued(trace, request)
            self._engine.submit(request)
        try:
            await self._stream(request, context)
        finally:
            self._engine.leave(request)

    async def _stream(self, request: Request, context: Context) -> None:
        completion_tokens = 0
        finish_reason = FINISH_REASON_UNSPECIFIED
        while finish_reason == FINISH_REASON_UNSPECIFIED:
            piece = await request.stream.next()
            completion_tokens += len(piece.token_ids)
            finish_reason = piece.finish_reason
            usage = None
            if finish_reason != FINISH_REASON_UNSPECIFIED:
                usage = Usage(
                    prompt_tokens=request.sequence.prompt_length,
                    cached_tokens=request.cached_tokens,
                    completion_tokens=completion_tokens,
                )
            await context.write(
                GenerateResponse(
                    token_ids=piece.token_ids,
                    text=piece.text,
                    finish_reason=finish_reason,
                    usage=usage,
                )
            )
        log.debug(
            "answered request=%r prompt_tokens=%d cached_tokens=%d completion_tokens=%d",
            request.request_id,
            request.sequence.prompt_length,
            request.cached_tokens,
            completion_tokens,
        )
