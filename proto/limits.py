"""Bounds of what one request may carry, the same at router and replica."""

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import GenerateRequest

MAX_NAME_CHARACTERS = 1024
"""Of model, extra_key and cache_salt; the last two live as long as what is cached under them."""

MAX_TEXT_CHARACTERS = 2**20
"""Of a text, or of a chat's roles and contents together: tokenising more would hold up others."""


def check_sizes(request: GenerateRequest) -> None:
    """Raises InvalidRequest with the field, its length and what is allowed."""
    for name in ("model", "extra_key", "cache_salt"):
        _check(name, len(getattr(request, name)), MAX_NAME_CHARACTERS)
    if request.HasField("text"):
        _check("text", len(request.text), MAX_TEXT_CHARACTERS)
    elif request.HasField("chat"):
        length = sum(len(m.role) + len(m.content) for m in request.chat.messages)
        _check("chat", length, MAX_TEXT_CHARACTERS)


def _check(name: str, length: int, most: int) -> None:
    if length > most:
        raise InvalidRequest(f"{name} has {length} characters, at most {most} are allowed")
