"""What routers are told of prompts that are accepted and not computed, so that all count them."""

from dataclasses import dataclass

from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Dropped
from replica.request import Request, RequestState
from replica.tree_core import TreeCore

MAX_PROMPTS = 1024
"""Announced at a time."""

MAX_BYTES = 1 << 19
"""Of all that are announced: some 65,000 blocks."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A prompt that routers count."""

    request: Request
    event: bytes
    num_tokens: int
    """Of the prompt, not cached when it was announced."""


class ExpectedPrompts:
    """Prompts from their acceptance to the end of their prefill.

    One that is computed ends without a word: its blocks are stored. One whose request leaves before
    is dropped. One that is preempted waits on.
    """

    def __init__(
        self, tree: TreeCore, *, max_prompts: int = MAX_PROMPTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._tree = tree
        self._max_prompts = max_prompts
        self._max_bytes = max_bytes
        self._accepted: list[Request] = []
        self._announced: dict[int, Announced] = {}
        self._num_bytes = 0
        self.num_tokens = 0
        """Of the prompts that `num_prompts` counts, those not cached when they were announced."""
        self._last_id = 0

    @property
    def has_news(self) -> bool:
        """A prompt was accepted since `changes` was called."""
        return bool(self._accepted)

    def accept(self, request: Request) -> None:
        self._accepted.append(request)

    @property
    def num_prompts(self) -> int:
        """Announced, and neither computed nor dropped."""
        return len(self._announced)

    def changes(self, *, announce: bool) -> bytes:
        """What happened since the call before, as DeltaBatch.events.

        Without `announce` the prompts accepted since then are never announced.
        """
        events = self._ended()
        if announce:
            events += [self._announce(request) for request in self._accepted if _waits(request)]
        self._accepted.clear()
        return b"".join(events)

    def snapshot(self) -> bytes:
        """The prompts announced that have not ended, as DeltaBatch.events."""
        return b"".join(each.event for each in self._announced.values())

    def _ended(self) -> list[bytes]:
        over = [id for id, each in self._announced.items() if not _waits(each.request)]
        events = []
        for id in over:
            ended = self._announced.pop(id)
            self._num_bytes -= len(ended.event)
            self.num_tokens -= ended.num_tokens
            if ended.request.last_token_s is None:
                dropped = DeltaEvent(dropped=Dropped(id=id))
                events.append(DeltaBatch(events=[dropped]).SerializeToString())
        return events

    def _announce(self, request: Request) -> bytes:
        """Empty if there is nothing to say, or no room for it."""
        sequence = request.sequence
        if len(self._announced) == self._max_prompts:
            return b""
        event = self._tree.expected(
            self._last_id + 1,
            sequence.keys[: sequence.prompt_length].data,
            node=sequence.node,
            length=sequence.cached,
            **sequence.namespace,
        )
        if not event or self._num_bytes + len(event) > self._max_bytes:
            return b""
        self._last_id += 1
        self._num_bytes += len(event)
        num_tokens = sequence.prompt_length - sequence.cached
        self.num_tokens += num_tokens
        self._announced[self._last_id] = Announced(request, event, num_tokens)
        return event


def _waits(request: Request) -> bool:
    """For its prefill, or for the end of it."""
    return request.state is not RequestState.FINISHED and request.last_token_s is None
