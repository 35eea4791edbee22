"""Images and other media in a prompt of token ids: what stands for them in trees and hashes.

A model's placeholders say that an item is there, not which. So the item's tokens are known by ids
drawn from its content: the same item is found again, another one parts at its first token, and what
stands before it is shared.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, MediaItem

MAX_MEDIA_ITEMS = 1024

MIN_HASH_BYTES = 16
MAX_HASH_BYTES = 64

_DOMAIN = b"prefixlb-media-v1"
_OUTSIDE_VOCABULARIES = b"\0\0\0\x80"  # the top bit of a little-endian u32


def check_media(request: GenerateRequest) -> None:
    """Raises InvalidRequest with what is wrong with the media items, and which it is."""
    items = request.media
    if not items:
        return
    if not request.HasField("tokens"):
        raise InvalidRequest("media needs a prompt of token ids, in which its ranges lie")
    if len(items) > MAX_MEDIA_ITEMS:
        raise InvalidRequest(f"media has {len(items)} items, at most {MAX_MEDIA_ITEMS} are allowed")
    length = len(request.tokens.ids)
    before = 0
    for index, item in enumerate(items):
        name = f"media[{index}]"
        if item.start >= item.end:
            raise InvalidRequest(f"{name}: start {item.start} is not below end {item.end}")
        if item.end > length:
            raise InvalidRequest(f"{name}: end {item.end} is past the prompt of {length} tokens")
        if item.start < before:
            raise InvalidRequest(
                f"{name}: start {item.start} is below the end {before} of the item before it"
            )
        size = len(item.content_hash)
        if not MIN_HASH_BYTES <= size <= MAX_HASH_BYTES:
            raise InvalidRequest(
                f"{name}: content_hash has {size} bytes, expected {MIN_HASH_BYTES} to "
                f"{MAX_HASH_BYTES}"
            )
        before = item.end


def prompt_keys(tokens: "array[int]", media: Sequence[MediaItem]) -> "array[int]":
    """The ids by which trees and routers know a prompt: `tokens` (u32), those of media replaced."""
    if not media:
        return tokens
    keys = tokens[:]
    for item in media:
        keys[item.start : item.end] = _ids(item.content_hash, item.end - item.start)
    return keys


def _ids(content_hash: bytes, count: int) -> "array[int]":
    """SHAKE-256 of domain and hash, a little-endian u32 an id, its top bit set."""
    drawn = hashlib.shake_256(_DOMAIN + content_hash).digest(4 * count)
    marked = int.from_bytes(drawn, "little") | int.from_bytes(
        _OUTSIDE_VOCABULARIES * count, "little"
    )
    ids = array("I", marked.to_bytes(4 * count, "little"))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
