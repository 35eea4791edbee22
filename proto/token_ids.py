"""A prompt's token ids as a buffer, without a Python object for each of them.

A packed `repeated fixed32` is on the wire what a u32 buffer is in memory, so a million ids cost a
copy of 4 MB, where a walk over the field would hold up the event loop.
"""

import sys
from array import array

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, TokenPrompt

FIELD = TokenPrompt.DESCRIPTOR.fields_by_name["ids"].number
PACKED = bytes([FIELD << 3 | 2])


def given_ids(request: GenerateRequest) -> "array[int] | None":
    """The prompt's ids (u32) where it has come as such, None where it is to be tokenised.

    Raises InvalidRequest if there is no prompt, or no id in it.
    """
    match request.WhichOneof("prompt"):
        case None:
            raise InvalidRequest("the request has no prompt: set text, chat or tokens")
        case "tokens":
            return not_empty(ids_of(request.tokens))
        case _:
            return None


def not_empty(ids: "array[int]") -> "array[int]":
    """The same ids. Raises InvalidRequest if there are none."""
    if not ids:
        raise InvalidRequest("the prompt is empty, expected at least 1 token")
    return ids


def ids_of(prompt: TokenPrompt) -> "array[int]":
    """The ids (u32)."""
    ids = array("I")
    if not prompt.ids:
        return ids
    wire = prompt.SerializeToString()  # fields come in order, unknown ones last
    assert wire.startswith(PACKED)
    size, start = _varint(wire, len(PACKED))
    ids.frombytes(memoryview(wire)[start : start + size])
    return _little_endian(ids)


def set_ids(prompt: TokenPrompt, ids: "array[int]") -> None:
    """Make the ids (u32) the prompt's."""
    data = _little_endian(ids).tobytes()
    prompt.ParseFromString(PACKED + _as_varint(len(data)) + data)


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids


def _varint(wire: bytes, place: int) -> tuple[int, int]:
    """The number at `place`, and where it ends."""
    value = shift = 0
    while True:
        byte = wire[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
