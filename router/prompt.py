"""What a request asks: of which model, with which tokens."""

import logging
from array import array
from dataclasses import dataclass

from proto.limits import check_sizes
from proto.media import check_media, prompt_keys
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.token_ids import given_ids
from proto.tokenising import Tokenising
from router.fleet import Fleet
from router.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    model: str
    tokens: "array[int]"
    """u32, as trees know them; none while only the replica can tokenise: then nothing matches."""
    tokenizer_digest: bytes | None = None
    """Of the tokenizer that made them here of text; a replica with another one takes the text."""


class PromptReader:
    """Reads prompts; counts those whose tokens only the replica can tell, and says when so."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._tokenising = Tokenising()
        self._untokenised: set[str] = set()
        """Models whose last text had to go as it is."""

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
        self._note(model, tokenised=tokenizer is not None)
        if tokenizer is None:
            return Prompt(model, array("I"))
        digest, codec = tokenizer
        return Prompt(model, await self._tokenising.ids(codec, request), digest)

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
