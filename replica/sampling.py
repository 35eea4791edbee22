"""How a request's tokens are chosen and when they end: the checked form of SamplingParams."""

import random
from dataclasses import dataclass

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import SamplingParams

DEFAULT_MAX_TOKENS = 128
MAX_TEMPERATURE = 100.0
MAX_STOP_TEXTS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 64


@dataclass(frozen=True)
class Sampling:
    """Checked sampling parameters; see SamplingParams in inference.proto."""

    max_tokens: int
    temperature: float
    """0: greedy."""
    top_k: int
    """0: all."""
    top_p: float
    seed: int
    stop_texts: tuple[str, ...]
    stop_token_ids: frozenset[int]
    """End-of-sequence tokens among them, unless the request ignores them."""


def sampling_of(
    params: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
    seeds: random.Random,
) -> Sampling:
    """Check `params` and fill in defaults; a seed not given is drawn from `seeds`.

    Raises InvalidRequest that names the value and its range.
    """
    max_tokens = params.max_tokens if params.HasField("max_tokens") else DEFAULT_MAX_TOKENS
    if max_tokens == 0:
        raise InvalidRequest("max_tokens is 0, expected at least 1")
    if not 0 <= params.temperature <= MAX_TEMPERATURE:  # refuses NaN too
        raise InvalidRequest(
            f"temperature is {params.temperature}, expected 0 to {MAX_TEMPERATURE:g}"
        )
    top_p = params.top_p if params.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        raise InvalidRequest(f"top_p is {top_p}, expected more than 0 and at most 1")
    if len(params.stop) > MAX_STOP_TEXTS:
        raise InvalidRequest(f"{len(params.stop)} stop texts, expected at most {MAX_STOP_TEXTS}")
    if "" in params.stop:
        raise InvalidRequest("a stop text is empty")
    if (longest := max(map(len, params.stop), default=0)) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"a stop text has {longest} characters, expected at most {MAX_STOP_CHARACTERS}"
        )
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequest(
            f"{len(params.stop_token_ids)} stop token ids, expected at most {MAX_STOP_TOKENS}"
        )
    if (highest := max(params.stop_token_ids, default=0)) >= vocab_size:
        raise InvalidRequest(
            f"stop token id {highest} is outside the vocabulary of {vocab_size} tokens"
        )
    return Sampling(
        max_tokens=max_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=top_p,
        seed=params.seed if params.HasField("seed") else seeds.getrandbits(64),
        stop_texts=tuple(params.stop),
        stop_token_ids=frozenset(params.stop_token_ids)
        | (frozenset() if params.ignore_eos else frozenset(eos_token_ids)),
    )
