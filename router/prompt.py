"""What a request asks: of which model, with which tokens."""

import asyncio
import logging
from array import array
from dataclasses import dataclass

from proto.errors import InvalidRequest
from proto.limits import check_sizes
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.text import TextCodec
from router.fleet import Fleet
from router.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    model: str
    tokens: "array[int]"
    """u32; none while only the replica can tokenise the text: then nothing matches."""
    tokenizer_digest: bytes | None = None
    """Of the tokenizer that made them here of text; a replica with another one takes the text."""


class PromptReader:
    """Reads prompts; counts those whose tokens only the replica can tell, and says when so."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._untokenised: set[str] = set()
        """Models whose last text had to go as it is."""

    async def read(self, request: GenerateRequest) -> Prompt:
        """Raises InvalidRequest, UnknownModel or Unavailable."""
        check_sizes(request)
        model = self._fleet.model(request.model)
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidRequest("the request has no prompt: set text, chat or tokens")
        digest: bytes | None = None
        if kind == "tokens":
            tokens = array("I", request.tokens.ids)
        else:
            tokenizer = self._fleet.tokenizer(model)
            self._note(model, tokenised=tokenizer is not None)
            if tokenizer is None:
                return Prompt(model, array("I"))
            digest, codec = tokenizer
            # A long text takes milliseconds, which running streams shall not wait for.
            tokens = array("I", await asyncio.to_thread(_encode, codec, request))
        if not tokens:
            raise InvalidRequest("the prompt has 0 tokens, at least 1 is needed")
        return Prompt(model, tokens, digest)

    def _note(self, model: str, *, tokenised: bool) -> None:
        if not tokenised:
            self._metrics.untokenised_prompts.labels(model=model).inc()
        if tokenised == (model not in self._untokenised):
            return
        if tokenised:
            self._untokenised.remove(model)
            log.info("text is tokenised again model=%s", model)
        else:
            self._untokenised.add(model)
            log.warning(
                "text goes untokenised, so that its prefixes are not seen: no tokenizer is here"
                " model=%s",
                model,
            )


def _encode(codec: TextCodec, request: GenerateRequest) -> list[int]:
    if request.HasField("chat"):
        return codec.encode_chat(request.chat.messages)
    return codec.encode(request.text)
