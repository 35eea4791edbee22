"""A request as its caller writes it: a prompt, and options by their names in inference.proto."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, cast

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import ChatMessage, GenerateRequest

Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""Text as it is; chat messages, each `{"role": ..., "content": ...}`; or token ids."""


class Options(TypedDict, total=False):
    """What `generate` takes besides the prompt; defaults and ranges as in inference.proto."""

    request_id: str
    model: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    extra_key: str
    cache_salt: str
    priority: int
    timeout_s: float
    """From the call to the last token; unset: no deadline."""


def build_request(prompt: Prompt, options: Options) -> GenerateRequest:
    """The message for `prompt`. Raises InvalidRequest for what the message cannot carry."""
    request = GenerateRequest()
    try:
        for name, value in options.items():
            if name == "timeout_s":
                continue
            outer = name in GenerateRequest.DESCRIPTOR.fields_by_name
            target: Any = request if outer else request.sampling
            if isinstance(value, list | tuple):
                getattr(target, name).extend(value)
            else:
                setattr(target, name, value)
        if isinstance(prompt, str):
            request.text = prompt
        elif len(prompt) and isinstance(prompt[0], Mapping):
            messages = cast(Sequence[Mapping[str, str]], prompt)
            request.chat.messages.extend(ChatMessage(**message) for message in messages)
        else:
            request.tokens.SetInParent()
            request.tokens.ids.extend(cast(Sequence[int], prompt))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not a request: {error}") from error
    return request
