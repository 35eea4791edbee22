"""How an answer gets from the engine's thread to whoever reads it on the event loop."""

import asyncio
from dataclasses import dataclass, field

from proto.errors import LBError
from proto.prefixlb.v1.inference_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason


@dataclass(slots=True)
class Piece:
    """A part of an answer: some tokens and the text that they released."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason.ValueType = FINISH_REASON_UNSPECIFIED
    """FINISH_REASON_UNSPECIFIED while the answer goes on."""


class AnswerStream:
    """Belongs to the event loop. Holds an answer at most, so that a slow reader slows nobody."""

    def __init__(self) -> None:
        self._piece = Piece()
        self._error: LBError | None = None
        self._news = asyncio.Event()

    def push(self, token_ids: list[int], text: str, finish_reason: FinishReason.ValueType) -> None:
        self._piece.token_ids += token_ids
        self._piece.text += text
        self._piece.finish_reason = finish_reason
        self._news.set()

    def fail(self, error: LBError) -> None:
        """The answer will not be complete."""
        self._error = error
        self._news.set()

    async def next(self) -> Piece:
        """All since the last call, once there is something. Raises the LBError it failed with."""
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        piece, self._piece = self._piece, Piece()
        return piece
