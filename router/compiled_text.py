"""A model's tokenizer compiled, where it makes the same tokens as the readable one."""

import logging
from array import array
from collections.abc import Callable

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import ChatMessage
from proto.text import TextCodec
from radix_rs import TextCodec as CompiledCodec
from radix_rs import TextError

log = logging.getLogger(__name__)

Chat = list[tuple[str, str]]

SAYINGS = (
    "It's 12,345.67 words,\r\n\n\tl'été — 日本語 🙂\u00a0…",
    "  blanks around  \n",
    '{"quoted": "<b>&amp;</b>"}',
)
"""What tokenizers and templates are most likely to treat in ways of their own."""


def compiled(codec: TextCodec) -> CompiledCodec | None:
    """The compiled twin of `codec`; None, with a line that says why, if it is none."""
    rules = codec.rules
    try:
        twin = CompiledCodec(
            codec.tokenizer_json,
            chat_template=rules.chat_template,
            bos_token=rules.bos_token,
            eos_token=rules.eos_token,
            add_bos=rules.add_bos,
        )
        alike = all(_alike(codec, twin, probe) for probe in probes())
        why = "" if alike else "it makes other tokens of a probe"
    except TextError as error:
        why = str(error)
    if why:
        log.warning("text is tokenised the slow way why=%r", why)
        return None
    return twin


def probes() -> list[str | Chat]:
    """Texts, and chats of the shapes that templates tell apart."""
    said, padded, quoted = SAYINGS
    turns = [("user", padded), ("assistant", quoted), ("user", said)]
    return [*SAYINGS, [("user", said)], turns, [("system", quoted), *turns], turns[:2]]


def _alike(codec: TextCodec, twin: CompiledCodec, probe: str | Chat) -> bool:
    if isinstance(probe, str):
        return _ids(twin.encode(probe)) == codec.encode(probe)
    chat = [ChatMessage(role=role, content=content) for role, content in probe]
    slow = _or_refusal(lambda: codec.encode_chat(chat))
    fast = _or_refusal(lambda: _ids(twin.encode_chat(probe)))
    return slow == fast


def _or_refusal(encode: Callable[[], list[int]]) -> list[int] | None:
    try:
        return encode()
    except (InvalidRequest, TextError):
        return None


def _ids(buffer: bytes) -> list[int]:
    return array("I", buffer).tolist()
