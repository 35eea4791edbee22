"""What the next step computes: each running request's next token, and prompt chunks."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from proto.prefixlb.v1 import delta_pb2
from replica.cache import Cache
from replica.request import Request, RequestState
from replica.schedule_policy import SchedulePolicy
from replica.sequence import Sequence

DECODE_RESERVE_TOKENS = 64
"""Output tokens of each request that admission keeps slots for; more may cost a preemption."""

SHARED_TOKENS = 32
"""Two prompts that share this much of what one has to compute are not computed in the same step."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` uncomputed tokens of a request."""

    request: Request
    num_tokens: int

    @property
    def end(self) -> int:
        return self.request.sequence.computed + self.num_tokens

    @property
    def is_last(self) -> bool:
        return self.num_tokens == self.request.sequence.remaining


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: slots are allocated for all of it."""

    decodes: list[Request]
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.decodes or self.chunks)


class Scheduler:
    """Requests by state, and the choice among them. Called from one thread."""

    def __init__(
        self,
        cache: Cache,
        policy: SchedulePolicy,
        *,
        chunk_size: int,
        page_size: int,
        max_running: int,
        wait_to_share: bool = True,
    ) -> None:
        """`chunk_size`: prompt tokens in a step at most, and at least a page.

        `wait_to_share`: of prompts that begin alike one is computed and the others wait for it,
        which is of use only if the tree keeps what is computed.
        """
        self._cache = cache
        self._policy = policy
        self._wait_to_share = wait_to_share
        self._changes_seen = cache.changes
        self._chunk_size = chunk_size
        self._page_size = page_size
        self._max_running = max_running
        self.prefill_tokens_per_s = 0.0
        """As measured; until then nothing ages."""
        self.waiting: list[Request] = []
        self.prefilling: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0

    def __iter__(self) -> Iterator[Request]:
        """All requests that are not finished."""
        return chain(self.running, self.prefilling, self.waiting)

    def add(self, request: Request) -> None:
        self._cache.look_up(request.sequence)
        self.waiting.append(request)

    def plan(self, now_s: float) -> Plan:
        """Choose and allocate the next step. An empty plan: there is nothing to do."""
        plan = Plan(self._plan_decodes())
        if self.prefilling or (self.waiting and len(self.running) < self._max_running):
            self._plan_chunks(plan, now_s)
            while plan.is_empty:
                # Nobody can go on: those half-way through their prompts hold each other's slots.
                self._preempt(self._youngest(self.prefilling))
                self._plan_chunks(plan, now_s)
        return plan

    def computed(self, chunk: Chunk) -> None:
        """`chunk` has its keys and values now."""
        request = chunk.request
        is_last = chunk.is_last
        request.sequence.computed += chunk.num_tokens
        request.reached = max(request.reached, request.sequence.computed)
        self._cache.checkpoint(request.sequence)
        if is_last:
            self.prefilling.remove(request)
            self.running.append(request)
            request.move(RequestState.RUNNING)

    def measure_prefill(self, num_tokens: int, duration_s: float) -> None:
        """A step with `num_tokens` of prompt took `duration_s`, decodes beside it included."""
        rate = num_tokens / duration_s
        known = self.prefill_tokens_per_s
        self.prefill_tokens_per_s = rate if known == 0.0 else 0.9 * known + 0.1 * rate

    def finish(self, request: Request) -> None:
        """It leaves, for whatever reason; nothing of it stays locked. Finished ones are ignored."""
        if request.state is not RequestState.FINISHED:
            self._leave(request)
            request.move(RequestState.FINISHED)

    def load(self) -> delta_pb2.Load:
        classes: dict[int, list[int]] = defaultdict(list)
        for request in chain(self.prefilling, self.waiting):
            tokens = request.sequence.uncached
            classes[tokens.bit_length() - 1].append(tokens)
        return delta_pb2.Load(
            running=len(self.running),
            waiting=len(self.waiting) + len(self.prefilling),
            pending_tokens=sum(map(sum, classes.values())),
            classes=[
                delta_pb2.LoadClass(log2=log2, requests=len(tokens), tokens=sum(tokens))
                for log2, tokens in sorted(classes.items())
            ],
            order=self._policy.order,
            free_slots=self._cache.num_free,
            evictable_slots=self._cache.available - self._cache.num_free,
            total_slots=self._cache.num_slots,
            chunk_tokens=self._chunk_size,
            prefill_tokens_per_s=round(self.prefill_tokens_per_s),
        )

    def check(self) -> None:
        """Raise CacheError unless every slot and every lock belongs to somebody. For tests."""
        self._cache.check([request.sequence for request in self])

    def _plan_decodes(self) -> list[Request]:
        """A slot for each running request's last token, if need be taken from the youngest."""
        decodes = []
        for request in list(self.running):
            while request.state is RequestState.RUNNING:
                if self._cache.allocate(request.sequence, request.sequence.length):
                    decodes.append(request)
                    break
                self._preempt(self._youngest(self.prefilling + self.running))
        return [request for request in decodes if request.state is RequestState.RUNNING]

    def _plan_chunks(self, plan: Plan, now_s: float) -> None:
        budget = self._chunk_size
        admitting = True
        for request in self._in_order(now_s):
            if budget < self._page_size:
                break
            if self._is_computed_by(plan, request):
                continue
            if request.state is RequestState.WAITING:
                # Who comes first and does not fit holds up those behind, lest it starve.
                admitting = admitting and self._admit(request)
                if not admitting:
                    continue
            else:
                self._cache.acquire(request.sequence)
                self._count_reuse(request)
            sequence = request.sequence
            num_tokens = sequence.remaining
            if num_tokens > budget:
                num_tokens = self._floor(sequence.computed + budget) - sequence.computed
            if num_tokens > 0 and self._cache.allocate(sequence, sequence.computed + num_tokens):
                plan.chunks.append(Chunk(request, num_tokens))
                budget -= num_tokens

    def _in_order(self, now_s: float) -> list[Request]:
        """All with something of their prompts to compute, the first to go first."""
        requests = self.prefilling + self.waiting
        if self._changes_seen != self._cache.changes:
            self._changes_seen = self._cache.changes
            for request in requests:
                self._cache.look_up(request.sequence)
        arranged = self._policy.arrange(requests, now_s, self.prefill_tokens_per_s)
        return sorted(arranged, key=lambda request: -request.priority)

    def _admit(self, request: Request) -> bool:
        """Lock its prefix and let it in, if there are then slots enough for the rest."""
        admitted = self.prefilling + self.running
        if len(admitted) >= self._max_running:
            return False
        self._cache.acquire(request.sequence)
        reserved = sum(_still_needed(other) for other in admitted)
        if admitted and self._cache.available < reserved + _still_needed(request):
            self._cache.release(request.sequence)
            return False
        self._count_reuse(request)
        self.waiting.remove(request)
        self.prefilling.append(request)
        request.move(RequestState.PREFILL)
        return True

    @staticmethod
    def _count_reuse(request: Request) -> None:
        """What it holds beyond all it ever held was computed by others."""
        computed = request.sequence.computed
        if request.generated == 0:
            request.cached_tokens += max(computed - request.reached, 0)
        request.reached = max(request.reached, computed)

    def _preempt(self, request: Request) -> None:
        """Take its slots: it waits again, and goes on from what the tree then holds of it."""
        self._leave(request)
        self.waiting.append(request)
        request.move(RequestState.WAITING)
        self.preemptions += 1

    def _leave(self, request: Request) -> None:
        {
            RequestState.WAITING: self.waiting,
            RequestState.PREFILL: self.prefilling,
            RequestState.RUNNING: self.running,
        }[request.state].remove(request)
        self._cache.release(request.sequence)

    def _is_computed_by(self, plan: Plan, request: Request) -> bool:
        """Whether a chunk is what `request` needs next; a step later that is in the tree."""
        if not plan.chunks or not self._wait_to_share:
            return False
        self._cache.look_up(request.sequence)  # the chunks' own prefixes are nodes now
        return any(self._shares(request.sequence, chunk) for chunk in plan.chunks)

    def _shares(self, ours: Sequence, chunk: Chunk) -> bool:
        theirs = chunk.request.sequence
        start, end = ours.cached, min(chunk.end, ours.length - 1)
        # At the same place in the tree all before is the same.
        if (start, ours.node) != (theirs.cached, theirs.node) or ours.namespace != theirs.namespace:
            return False
        differs = ours.keys[start:end] != theirs.keys[start:end]
        common = self._floor(start + int(differs.argmax()) if differs.any() else end)
        # Measured from where the other began: who has waited so far waits for the rest of it too.
        return common > start and common - chunk.request.cached_tokens >= SHARED_TOKENS

    def _floor(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self._page_size

    @staticmethod
    def _youngest(requests: list[Request]) -> Request:
        """Of the lowest priority, the one that came last."""
        return max(requests, key=lambda request: (-request.priority, request.arrived_s))


def _still_needed(request: Request) -> int:
    """Slots it will want: the rest of its prompt and the beginning of its answer.

    The answer's last token is never computed.
    """
    left = request.sampling.max_tokens - request.generated - 1
    return request.sequence.length - request.sequence.allocated + min(left, DECODE_RESERVE_TOKENS)
