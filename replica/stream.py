"""How an answer gets from the engine's thread to whoever reads it on the event loop."""

import asyncio
from dataclasses import dataclass
from enum import Enum

from proto.errors import LBError


class Finish(Enum):
    """How a complete answer ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Piece:
    """What came since the last one."""

    token_ids: list[int]
    finish: Finish | None


class TokenStream:
    """Belongs to the event loop. Holds at most `max_tokens` ids, so a slow reader slows nobody."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._end: Finish | LBError | None = None
        self._news = asyncio.Event()

    def push(self, token_id: int | None, end: Finish | LBError | None) -> None:
        if token_id is not None:
            self._token_ids.append(token_id)
        if end is not None:
            self._end = end
        self._news.set()

    async def next(self) -> Piece:
        """All since the last call, waiting if there is nothing. Raises the LBError it ended with."""
        await self._news.wait()
        self._news.clear()
        token_ids, self._token_ids = self._token_ids, []
        if isinstance(self._end, LBError):
            raise self._end
        return Piece(token_ids, self._end)
