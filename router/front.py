"""The data plane: a request comes in, a replica is picked, its answer passes through.

Nothing else touches a request's stream, so another data plane can take the place of this file.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from grpc import aio

from proto.errors import (
    LBError,
    Overloaded,
    StalledReader,
    Unavailable,
    abort,
    code_of_departure,
)
from proto.limits import MAX_REQUEST_ID_CHARACTERS, check_message, check_metadata
from proto.metadata import MATCHED_TOKENS, REASON, REPLICA, Pairs, passed
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, GenerateResponse
from proto.prefixlb.v1.inference_pb2_grpc import InferenceServicer
from proto.token_ids import set_ids
from radix_rs import Pick, Router
from router.admission import Admission
from router.fleet import Fleet, none_eligible
from router.metrics import Metrics
from router.prompt import Prompt, PromptReader
from router.replica_state import ReplicaState

log = logging.getLogger(__name__)

Context = aio.ServicerContext[GenerateRequest, GenerateResponse]

RETRY_PAUSE_S = 0.05
"""Bound of the pause before the second retry, doubled with each one more; the first is at once."""

RETRYABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Before the first message these say that another replica may serve the request."""


class ReplicaFailed(Exception):
    """The replica did not serve the request and another may: nothing of an answer has come."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Course:
    """How one request goes, for its metrics."""

    started_s: float
    model: str = ""
    last_message_s: float | None = None


class Front(InferenceServicer):
    """Inference as a client sees it, over all replicas."""

    def __init__(
        self,
        *,
        router: Router,
        fleet: Fleet,
        metrics: Metrics,
        retries: int,
        prompts: PromptReader,
        admission: Admission,
        write_stall_s: float,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._fleet = fleet
        self._metrics = metrics
        self._retries = retries
        self._prompts = prompts
        self._admission = admission
        self._write_stall_s = write_stall_s
        self._rng = rng
        self._clock = clock

    async def Generate(self, request: GenerateRequest, context: Context) -> None:  # type: ignore[override]
        course = Course(self._clock())
        code = grpc.StatusCode.UNKNOWN  # what grpc makes of an error that is none of ours
        refusal: tuple[grpc.StatusCode, str, Pairs] | None = None
        try:
            with self._admission.admitted():
                await self._serve(request, context, course)
            code = grpc.StatusCode.OK
        except LBError as error:
            code = error.code
            refusal = (code, str(error), ())
        except aio.AioRpcError as error:  # the replica's own refusal, word for word
            code = error.code()
            refusal = (code, error.details() or "", passed(error.trailing_metadata()))
        except (asyncio.CancelledError, aio.InternalError) as error:
            # Either way the client has gone: a write to it may fail before we are told.
            code = code_of_departure(context)
            raise asyncio.CancelledError from error
        finally:
            self._metrics.requests.labels(model=course.model, code=code.name).inc()
        if refusal is not None:
            # The last step, as a status waits behind what its client does not read.
            await abort(context, *refusal)

    async def _serve(self, request: GenerateRequest, context: Context, course: Course) -> None:
        metadata = passed(context.invocation_metadata())
        check_metadata(metadata)
        prompt = await self._prompts.read(request)
        course.model = request.model = prompt.model
        request.request_id = request.request_id[:MAX_REQUEST_ID_CHARACTERS] or uuid.uuid4().hex
        failed: list[str] = []
        failure: ReplicaFailed | None = None
        while len(failed) <= self._retries:
            if len(failed) > 1:
                await asyncio.sleep(self._rng.uniform(0, RETRY_PAUSE_S * 2 ** (len(failed) - 2)))
            with self._picked(request, prompt, exclude=failed) as pick:
                if pick is None:
                    break
                if failed:
                    self._metrics.retries.inc()
                try:
                    await self._forward(request, metadata, context, pick, prompt, course)
                    return
                except ReplicaFailed as error:
                    failure = error
                    failed.append(pick.replica)
                    log.warning("retry request=%r why=%r", request.request_id, str(error))
        if failure is None:
            raise none_eligible(prompt.model)
        full = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        raise (Overloaded if full else Unavailable)(
            f"tried {', '.join(failed)}: {failure}"
        ) from failure

    @contextmanager
    def _picked(
        self, request: GenerateRequest, prompt: Prompt, exclude: list[str]
    ) -> Iterator[Pick | None]:
        """The pick; its prompt is in flight at the replica until the end of the block."""
        pick = self._router.pick(
            prompt.tokens,
            model=prompt.model,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            exclude=exclude,
            now_s=self._clock(),
        )
        if pick is None:
            yield None
            return
        self._metrics.picks.labels(reason=pick.reason).inc()
        try:
            yield pick
        finally:
            self._router.release(pick.ticket)

    async def _forward(
        self,
        request: GenerateRequest,
        metadata: Pairs,
        context: Context,
        pick: Pick,
        prompt: Prompt,
        course: Course,
    ) -> None:
        """Pass the replica's answer on. Raises ReplicaFailed only while there is none."""
        state = self._fleet.replica(pick.replica)
        call = state.generate(
            _as_taken(request, prompt, state),
            timeout_s=context.time_remaining(),
            metadata=aio.Metadata(*metadata),
        )
        answered = False
        try:
            async for message in call:
                state.heard_s = self._clock()
                if not answered:
                    answered = True
                    state.answered(call)
                    self._router.prefilled(pick.ticket)
                    await context.send_initial_metadata(
                        (*passed(await call.initial_metadata()), *_decision(state, pick, prompt))
                    )
                await self._write(message, context)
                self._observe(message, course)
                if message.HasField("usage"):
                    state.count(message.usage, pick)
            context.set_trailing_metadata(passed(await call.trailing_metadata()))
        except aio.AioRpcError as error:
            self._failed(state, error.code(), error.details() or "", answered, error)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the client has gone, or its deadline has come
            self._failed(state, grpc.StatusCode.UNAVAILABLE, state.ended_because, answered, error)
        finally:
            call.cancel()

    async def _write(self, message: GenerateResponse, context: Context) -> None:
        """Returns once the client, or the network to it, takes the message."""
        try:
            async with asyncio.timeout(self._write_stall_s):
                await context.write(message)
        except TimeoutError as error:
            raise StalledReader(
                f"the answer was not read for {self._write_stall_s:g} s; the rest is given up"
            ) from error

    def _failed(
        self,
        state: ReplicaState,
        code: grpc.StatusCode,
        details: str,
        answered: bool,
        cause: BaseException,
    ) -> None:
        """Say what a replica's failure means; returns if it is a plain refusal."""
        if code is grpc.StatusCode.CANCELLED:  # not by us: it is shutting down
            code = grpc.StatusCode.UNAVAILABLE
        if code is grpc.StatusCode.UNAVAILABLE:
            self._fleet.suspect(state, details)
        if not answered and code in RETRYABLE:
            raise ReplicaFailed(code, f"replica {state.id} failed: {details}") from cause
        if code is grpc.StatusCode.UNAVAILABLE:
            raise Unavailable(f"replica {state.id} failed during its answer: {details}") from cause

    def _observe(self, message: GenerateResponse, course: Course) -> None:
        now = self._clock()
        if course.last_message_s is None:
            self._metrics.first_token.labels(model=course.model).observe(now - course.started_s)
        elif message.token_ids:
            self._metrics.inter_token.labels(model=course.model).observe(
                now - course.last_message_s
            )
        course.last_message_s = now


def _as_taken(request: GenerateRequest, prompt: Prompt, state: ReplicaState) -> GenerateRequest:
    """The request with the prompt's tokens, where they mean the same; elsewhere as it came.

    Raises InvalidRequest if it is then too large for anybody.
    """
    if prompt.tokenizer_digest != state.lease.tokenizer_digest:
        return request
    tokenised = GenerateRequest()
    tokenised.CopyFrom(request)
    set_ids(tokenised.tokens, prompt.tokens)
    check_message(tokenised)
    return tokenised


def _decision(state: ReplicaState, pick: Pick, prompt: Prompt) -> tuple[tuple[str, str], ...]:
    """What the router adds to the initial metadata."""
    matched = state.reusable(pick.matched, len(prompt.tokens))
    return (
        (REPLICA, pick.replica),
        (MATCHED_TOKENS, str(matched)),
        (REASON, pick.reason),
    )
