"""One step after the other: choose, compute, sample, tell. Knows nothing of threads."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from proto.errors import DeadlineExceeded, LBError, NotReady
from proto.prefixlb.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason
from replica.cache import Cache
from replica.delta_log import DeltaLog, Position
from replica.expected import ExpectedPrompts
from replica.metrics import Metrics
from replica.models.interface import Batch, Model, Segment
from replica.models.sampler import Draw, sample
from replica.pool import Pool
from replica.request import Request
from replica.scheduler import Plan, Scheduler
from replica.tree_core import TreeCore

log = logging.getLogger(__name__)

REPORT_PERIOD_S = 0.010
"""Seconds between reports of the load at least, except when there is nothing left to do."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step gave one request."""

    request: Request
    token_ids: list[int]
    """None or one."""
    text: str
    finish_reason: FinishReason.ValueType
    error: LBError | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason != FINISH_REASON_UNSPECIFIED or self.error is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tree as of a position: deltas of later seq continue it."""

    position: Position
    chunks: Iterator[bytes]
    """Each the wire format of DeltaBatch.events; made as they are asked for, by any thread."""


class Engine:
    """Runs the scheduler's plans on the model and tells the delta log what the tree did."""

    def __init__(
        self,
        *,
        model: Model,
        tree: TreeCore,
        pool: Pool,
        cache: Cache,
        scheduler: Scheduler,
        delta_log: DeltaLog,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._tree = tree
        self._pool = pool
        self._cache = cache
        self._scheduler = scheduler
        self._delta_log = delta_log
        self._metrics = metrics
        self._clock = clock
        self._expected = ExpectedPrompts(tree)
        self._reported_s = -REPORT_PERIOD_S
        self._reported_work: tuple[int, int, int] | None = None
        self._evicted_tokens = 0
        self._preemptions = 0
        self._report(clock())  # so that the first batches tell how much room there is

    def add(self, request: Request) -> None:
        self._scheduler.add(request)
        self._expected.accept(request)

    def leave(self, request: Request) -> None:
        """Nobody waits for it any more. Idempotent."""
        self._scheduler.finish(request)

    def drain(self) -> None:
        """Say in the load that nothing new is taken. Any thread may call it."""
        self._delta_log.drain()

    def position(self) -> Position:
        """Where deltas and load stand, as of the last step. Any thread may call it."""
        return self._delta_log.seal()

    def snapshot(self) -> Snapshot:
        self._publish()
        expected = self._expected.snapshot()
        chunks = itertools.chain(self._tree.snapshot(), (expected,) if expected else ())
        return Snapshot(self._delta_log.seal(), chunks)

    def flush(self) -> tuple[int, int]:
        """(new epoch, tokens dropped). Raises NotReady while there are requests."""
        if count := sum(1 for _ in self._scheduler):
            raise NotReady(f"cannot flush: {count} requests are being served")
        dropped = self._cache.flush()
        epoch = self._delta_log.new_epoch()
        self._report(self._clock())
        self._publish()
        log.info("flushed epoch=%016x tokens=%d", epoch, dropped)
        return epoch, dropped

    def step(self) -> list[Progress]:
        """One forward pass over all that can go on, if anything can."""
        now_s = self._clock()
        progress = [
            self._expire(request)
            for request in list(self._scheduler)
            if request.deadline_s is not None and request.deadline_s <= now_s
        ]
        plan = self._scheduler.plan(now_s)
        if self._expected.has_news:
            # Not only when the step is done: the next prompts of a burst are being picked.
            self._publish()
        if plan.is_empty:
            self._report(now_s)
        else:
            progress += self._compute(plan, now_s)
        self._publish()
        return progress

    @property
    def is_idle(self) -> bool:
        """Nothing to do before another request comes."""
        return not any(True for _ in self._scheduler)

    def _compute(self, plan: Plan, started_s: float) -> list[Progress]:
        for chunk in plan.chunks:
            if chunk.request.prefill_began_s is None:
                chunk.request.prefill_began_s = started_s
        sampled = plan.decodes + [chunk.request for chunk in plan.chunks if chunk.is_last]
        token_ids = self._forward(plan, sampled)
        now_s = self._clock()
        self._metrics.steps.inc()
        for request in plan.decodes:
            request.sequence.computed += 1
        for chunk in plan.chunks:
            self._scheduler.computed(chunk)
        if prefilled := sum(chunk.num_tokens for chunk in plan.chunks):
            self._metrics.prefilled_tokens.inc(prefilled)
            if now_s > started_s:
                self._scheduler.measure_prefill(prefilled, now_s - started_s)
        progress = [
            self._take(request, token_id, now_s)
            for request, token_id in zip(sampled, token_ids, strict=True)
        ]
        if now_s - self._reported_s >= REPORT_PERIOD_S or self.is_idle:
            self._report(now_s)
        return progress

    def _forward(self, plan: Plan, sampled: list[Request]) -> list[int]:
        tokens, segments = [], []
        for request in plan.decodes:
            sequence = request.sequence
            tokens.append(sequence.tokens[-1:])
            segments.append(Segment(1, sequence.slots_tensor[: sequence.length].long(), True))
        for chunk in plan.chunks:
            sequence = chunk.request.sequence
            tokens.append(sequence.tokens[sequence.computed : chunk.end])
            slots = sequence.slots_tensor[: chunk.end].long()
            segments.append(Segment(chunk.num_tokens, slots, chunk.is_last))
        batch = Batch(torch.from_numpy(np.concatenate(tokens).astype(np.int64)), tuple(segments))
        with torch.inference_mode():
            logits = self._model.forward(batch, self._pool)
            draws = [Draw(request.sampling, request.generated) for request in sampled]
            return sample(logits, draws) if draws else []

    def _take(self, request: Request, token_id: int, now_s: float) -> Progress:
        """The next token of `request`; a stop token ends the answer and is not part of it."""
        if request.last_token_s is None:
            request.first_token_s = now_s
            self._metrics.ttft_s.observe(now_s - request.arrived_s)
            self._metrics.prompt_tokens.inc(request.sequence.prompt_length)
            self._metrics.cached_tokens.inc(request.cached_tokens)
        else:
            self._metrics.inter_token_s.observe(now_s - request.last_token_s)
        request.last_token_s = now_s
        self._metrics.generated_tokens.inc()
        addition = request.output.push(token_id)
        if not addition.is_stop_token:
            request.sequence.append(token_id)
        if addition.finish_reason != FINISH_REASON_UNSPECIFIED:
            self._scheduler.finish(request)
        token_ids = [] if addition.is_stop_token else [token_id]
        return Progress(request, token_ids, addition.text, addition.finish_reason)

    def _expire(self, request: Request) -> Progress:
        self._scheduler.finish(request)
        error = DeadlineExceeded("the deadline passed before the answer was complete")
        return Progress(request, [], "", FINISH_REASON_UNSPECIFIED, error)

    def _report(self, now_s: float) -> None:
        """Tell log and metrics how much there is to do; at once if that changed."""
        load = self._scheduler.load()
        work = (load.running, load.waiting, load.pending_tokens)
        stats = self._tree.stats()
        self._metrics.show(load, protected=stats.protected)
        self._metrics.evicted_tokens.inc(stats.evicted_total - self._evicted_tokens)
        self._evicted_tokens = stats.evicted_total
        self._metrics.preemptions.inc(self._scheduler.preemptions - self._preemptions)
        self._preemptions = self._scheduler.preemptions
        self._delta_log.report(load, urgent=work != self._reported_work)
        self._reported_work = work
        self._reported_s = now_s

    def _publish(self) -> None:
        """Hand over what the tree did since the last time, and which prompts it is to hold."""
        deltas = self._tree.drain_deltas()
        if deltas is not None and (dropped := self._delta_log.append(deltas)):
            self._metrics.dropped_bytes.inc(dropped)
            log.warning("delta backlog is full, dropped size_bytes=%d", dropped)
        if self._expected.has_news:
            self._report(self._clock())  # a batch's load counts the prompts it announces
        if events := self._expected.changes(announce=not self._delta_log.is_behind):
            self._delta_log.announce(events)
        self._metrics.announced_prompts.set(self._expected.num_prompts)
        self._metrics.announced_tokens.set(self._expected.num_tokens)
