"""What a process serves over HTTP beside its metrics: what comes in, what goes out."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Protocol


@dataclass(frozen=True)
class Asked:
    """One request, read to its end."""

    method: str
    """GET or POST; who asks for the head alone is answered as by GET."""
    path: str
    """Without the query."""
    query: Mapping[str, str]
    headers: Message
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What goes back, with a length and no more headers than these."""

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...]


class Site(Protocol):
    """Answers on threads of the page, several at once."""

    def has(self, path: str) -> bool:
        """Whether a path is its own."""

    def admits(self, asked: Asked) -> int | Answer:
        """How many bytes of a body that is not read yet it takes of this caller, or its refusal."""

    def answer(self, asked: Asked) -> Answer: ...
