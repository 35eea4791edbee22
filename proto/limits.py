"""Bounds of what one request may carry, the same at router and replica.

They are no settings: a router must take nothing that a replica refuses.
"""

from collections.abc import Iterable

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import GenerateRequest

MAX_REQUEST_ID_CHARACTERS = 128
"""Of a client's `request_id`; the rest is cut off, as it goes into logs."""

MAX_NAME_CHARACTERS = 1024
"""Of model, extra_key and cache_salt; the last two live as long as what is cached under them."""

MAX_TEXT_CHARACTERS = 2**20
"""Of a text, or of a chat's roles and contents together: tokenising more takes too long."""

MAX_CHAT_MESSAGES = 2**14

MAX_PROMPT_TOKENS = 2**20
"""Of a prompt that comes as token ids."""

MAX_MESSAGE_BYTES = 16 * 2**20
"""Of any message, either way."""

MAX_METADATA_BYTES = 8 * 2**10
"""Of what a caller sends along, each entry counted as HTTP/2 does."""

METADATA_ENTRY_BYTES = 32
"""HTTP/2's surcharge for each (RFC 9113, 6.5.2)."""

MAX_HEADER_BYTES = 2 * MAX_METADATA_BYTES
"""Of the metadata and what gRPC and a router add to it."""

SERVER_LIMITS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # One bound, not two: between them gRPC refuses by chance, the likelier the larger.
    ("grpc.max_metadata_size", MAX_HEADER_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
)
"""Options of a server."""


def check_length(prompt_tokens: int, *, context_length: int, num_slots: int) -> None:
    """Raises InvalidRequest for a prompt that a replica's model or pool is too small for."""
    if prompt_tokens >= context_length:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens, the model's context of {context_length} "
            f"has room for {context_length - 1} beside the answer"
        )
    if prompt_tokens > num_slots:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens, the replica's pool {num_slots} slots"
        )


def check_sizes(request: GenerateRequest) -> None:
    """Raises InvalidRequest with the field, its length and what is allowed."""
    for name in ("model", "extra_key", "cache_salt"):
        _check(name, len(getattr(request, name)), MAX_NAME_CHARACTERS)
    match request.WhichOneof("prompt"):
        case "tokens":
            _check("tokens", len(request.tokens.ids), MAX_PROMPT_TOKENS, "token ids")
        case "chat":
            _check("chat", len(request.chat.messages), MAX_CHAT_MESSAGES, "messages")
            _check("chat", prompt_characters(request), MAX_TEXT_CHARACTERS)
        case _:
            _check("text", prompt_characters(request), MAX_TEXT_CHARACTERS)


def prompt_characters(request: GenerateRequest) -> int:
    """How much there is to tokenise."""
    if request.HasField("chat"):
        return sum(len(m.role) + len(m.content) for m in request.chat.messages)
    return len(request.text)


def check_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Raises InvalidRequest if a caller's metadata is too large."""
    size = sum(len(key) + len(value) + METADATA_ENTRY_BYTES for key, value in metadata)
    _check("metadata", size, MAX_METADATA_BYTES, "bytes")


def check_message(request: GenerateRequest) -> None:
    """Raises InvalidRequest if the whole, as it is now, can be sent to nobody."""
    _check("the request", request.ByteSize(), MAX_MESSAGE_BYTES, "bytes")


def _check(name: str, length: int, most: int, unit: str = "characters") -> None:
    if length > most:
        raise InvalidRequest(f"{name} has {length} {unit}, at most {most} are allowed")
