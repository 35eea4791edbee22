"""The next token of each request, from its logits."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from replica.sampling import Sampling

NUCLEUS_GUESS = 256
"""A top_p set is looked for among this many likeliest tokens before all are sorted."""


@dataclass(frozen=True)
class Draw:
    """One row's choice: by which parameters, and for which position of its request."""

    sampling: Sampling
    position: int
    """Tokens generated before this one."""


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token id for each row of `logits` (float32, [draws, vocab_size]).

    A row's choice follows from its own logits, parameters and position, never from other rows.
    """
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    for row, draw in enumerate(draws):
        if draw.sampling.temperature > 0:
            chosen[row] = sample_row(
                logits[row], draw.sampling, uniform(draw.sampling.seed, draw.position)
            )
    return chosen


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that only `seed` and `position` decide."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def sample_row(logits: torch.Tensor, sampling: Sampling, at: float) -> int:
    """The token at the point `at` in [0, 1) of the cumulative distribution."""
    # The highest logit becomes 0, so that no temperature overflows.
    scaled = (logits - logits.max()) / sampling.temperature
    vocab_size = len(scaled)
    if 0 < sampling.top_k < vocab_size:
        scaled, tokens = scaled.topk(sampling.top_k)
        kept = nucleus(scaled.softmax(dim=-1), sampling.top_p)
    elif sampling.top_p < 1:
        kept, tokens = likeliest(scaled.softmax(dim=-1), sampling.top_p)
    else:
        kept, tokens = scaled.softmax(dim=-1), None
    # In float64: 50,000 float32 terms would leave the sum short of its end by more than a token.
    reached = kept.double().cumsum(dim=-1)
    place = torch.searchsorted(reached, at * reached[-1], right=True).clamp_(max=len(kept) - 1)
    return int(place if tokens is None else tokens[place])


def likeliest(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of likeliest tokens that reaches `top_p`: probabilities, and their ids."""
    top, tokens = probabilities.topk(min(NUCLEUS_GUESS, len(probabilities)))
    if top.sum() < top_p:
        top, tokens = probabilities.sort(descending=True)
    return nucleus(top, top_p), tokens


def nucleus(descending: torch.Tensor, top_p: float) -> torch.Tensor:
    """The shortest beginning whose sum reaches `top_p`."""
    before = descending.cumsum(dim=-1) - descending
    return descending[before < top_p]
