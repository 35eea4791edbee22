"""What a request asks: of which model, with which tokens."""

from array import array
from dataclasses import dataclass

from proto.limits import check_sizes
from proto.media import check_media, prompt_keys
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.token_ids import given_ids
from proto.tokenising import Tokenising
from router.fleet import Fleet
from router.metrics import Metrics


@dataclass(frozen=True)
class Prompt:
    model: str
    tokens: "array[int]"
    """u32, as trees know them; none while only the replica can tokenise: then nothing matches."""
    tokenizer_digest: bytes | None = None
    """Of the tokenizer that made them here of text; a replica with another one takes the text."""


class PromptReader:
    """Reads prompts; counts those whose tokens only the replica can tell."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._tokenising = Tokenising()

    async def read(self, request: GenerateRequest) -> Prompt:
        """The prompt; `request` stays as it came.

        Raises InvalidRequest, UnknownModel or Unavailable.
        """
        check_sizes(request)
        check_media(request)
        model = self._fleet.model(request.model)
        if (tokens := given_ids(request)) is not None:
            return Prompt(model, prompt_keys(tokens, request.media))
        tokenizer = self._fleet.tokenizer(model)
        if tokenizer is None:
            self._metrics.untokenised_prompts.labels(model=model).inc()
            return Prompt(model, array("I"))
        digest, codec = tokenizer
        return Prompt(model, await self._tokenising.ids(codec, request), digest)
