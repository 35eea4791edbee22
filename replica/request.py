"""A request as the engine sees it: what is asked and how far it is."""

from dataclasses import dataclass
from enum import Enum

from replica.output import Output
from replica.sampling import Sampling
from replica.sequence import Sequence
from replica.stream import AnswerStream


class RequestState(Enum):
    WAITING = "waiting"  # holds no slot and no lock; how much of it is cached may change
    PREFILL = "prefill"  # its cached prefix is locked, the rest partly computed
    RUNNING = "running"  # all but its last token computed; one more token each step
    FINISHED = "finished"  # holds no slot and no lock


_MOVES = {
    RequestState.WAITING: {RequestState.PREFILL, RequestState.FINISHED},
    RequestState.PREFILL: {RequestState.WAITING, RequestState.RUNNING, RequestState.FINISHED},
    RequestState.RUNNING: {RequestState.WAITING, RequestState.FINISHED},
    RequestState.FINISHED: set[RequestState](),
}


@dataclass(eq=False, slots=True)
class Request:
    """One prompt on its way to an answer. Times are those of the engine's monotonic clock."""

    request_id: str
    sequence: Sequence
    sampling: Sampling
    """`max_tokens` are those asked for, or fewer where context or pool end."""
    output: Output
    stream: AnswerStream
    arrived_s: float
    deadline_s: float | None
    state: RequestState = RequestState.WAITING
    cached_tokens: int = 0
    """Prompt tokens reused rather than computed."""
    reached: int = 0
    """The most positions it ever held; what it gets back after a preemption is not reuse."""
    prefill_began_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def priority(self) -> int:
        return self.sequence.priority

    @property
    def generated(self) -> int:
        return self.sequence.length - self.sequence.prompt_length

    def move(self, state: RequestState) -> None:
        if state not in _MOVES[self.state]:
            raise RuntimeError(f"request {self.request_id!r}: {self.state.value} to {state.value}")
        self.state = state
