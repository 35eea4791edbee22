"""What a request asks: of which model, with which tokens."""

import asyncio
from array import array
from dataclasses import dataclass

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.text import TextCodec
from router.fleet import Fleet


@dataclass(frozen=True)
class Prompt:
    model: str
    tokens: "array[int]"
    """u32; none while only the replica can tokenise the text: then nothing matches."""


async def read_prompt(request: GenerateRequest, fleet: Fleet) -> Prompt:
    """Raises InvalidRequest, UnknownModel or Unavailable."""
    model = fleet.model(request.model)
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("the request has no prompt: set text, chat or tokens")
    if kind == "tokens":
        tokens = array("I", request.tokens.ids)
    elif (codec := fleet.codec(model)) is not None:
        # A long text takes milliseconds, which the streams that are running shall not wait for.
        tokens = array("I", await asyncio.to_thread(_encode, codec, request))
    else:
        return Prompt(model, array("I"))
    if not tokens:
        raise InvalidRequest("the prompt has 0 tokens, at least 1 is needed")
    return Prompt(model, tokens)


def _encode(codec: TextCodec, request: GenerateRequest) -> list[int]:
    if request.HasField("chat"):
        return codec.encode_chat(request.chat.messages)
    return codec.encode(request.text)
