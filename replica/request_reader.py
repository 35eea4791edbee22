"""From the wire to a Request, or to an error that says what is wrong with it."""

import dataclasses
import random
import time
import uuid
from array import array
from collections.abc import Callable

import numpy as np

from proto.errors import InvalidRequest, UnknownModel
from proto.limits import MAX_REQUEST_ID_CHARACTERS, check_length, check_sizes
from proto.media import check_media, prompt_keys
from proto.prefixlb.v1.inference_pb2 import GenerateRequest
from proto.text import TextCodec
from proto.tokenising import Tokenising
from replica.models.interface import ModelConfig
from replica.output import Output
from replica.request import Request
from replica.sampling import sampling_of
from replica.sequence import Sequence, TokenArray
from replica.stream import AnswerStream


class RequestReader:
    """What one replica's model and pool can serve."""

    def __init__(
        self,
        *,
        codec: TextCodec,
        config: ModelConfig,
        model_id: str,
        num_slots: int,
        seeds: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seeds` draws those that requests leave open."""
        self._codec = codec
        self._tokenising = Tokenising()
        self._config = config
        self._model_id = model_id
        self._num_slots = num_slots
        self._seeds = seeds
        self._clock = clock

    async def read(self, message: GenerateRequest, time_remaining_s: float | None) -> Request:
        """Raises InvalidRequest or UnknownModel.

        `max_tokens` beyond context or pool is cut to what fits: the answer then ends by length.
        """
        arrived_s = self._clock()
        check_sizes(message)
        check_media(message)
        if message.model not in ("", self._model_id):
            raise UnknownModel(f"no model {message.model!r} here, only {self._model_id!r}")
        sampling = sampling_of(
            message.sampling,
            vocab_size=self._config.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            seeds=self._seeds,
        )
        ids = await self._tokenising.ids(self._codec, message)
        prompt = np.frombuffer(ids, dtype=np.uint32)
        self._check_vocabulary(prompt)
        max_tokens = min(sampling.max_tokens, self._room(len(prompt)))
        sampling = dataclasses.replace(sampling, max_tokens=max_tokens)
        return Request(
            request_id=message.request_id[:MAX_REQUEST_ID_CHARACTERS] or uuid.uuid4().hex,
            sequence=Sequence(
                prompt,
                keys=_keys(ids, message),
                extra_key=message.extra_key,
                cache_salt=message.cache_salt,
                priority=message.priority,
            ),
            sampling=sampling,
            output=Output(sampling, self._codec.detokenizer()),
            stream=AnswerStream(),
            arrived_s=arrived_s,
            deadline_s=None if time_remaining_s is None else arrived_s + time_remaining_s,
        )

    def _check_vocabulary(self, prompt: TokenArray) -> None:
        if (highest := int(prompt.max())) >= self._config.vocab_size:
            raise InvalidRequest(
                f"token id {highest} is outside the vocabulary of {self._config.vocab_size} tokens"
            )

    def _room(self, prompt_length: int) -> int:
        """Tokens that an answer can have at most; the last one needs no slot."""
        context = self._config.context_length
        check_length(prompt_length, context_length=context, num_slots=self._num_slots)
        return min(context - prompt_length, self._num_slots - prompt_length + 1)


def _keys(prompt: "array[int]", message: GenerateRequest) -> TokenArray | None:
    if not message.media:
        return None
    return np.frombuffer(prompt_keys(prompt, message.media), dtype=np.uint32)
