"""Choosing tokens, and checking the parameters that say how."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import SamplingParams
from replica.models.sampler import Draw, sample, uniform
from replica.sampling import Sampling, sampling_of

GREEDY = Sampling(
    max_tokens=16,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    seed=1,
    stop_texts=(),
    stop_token_ids=frozenset(),
)
WARM = replace(GREEDY, temperature=1.0)
LOGITS = torch.randn(600, generator=torch.Generator().manual_seed(3)) * 2


def drawn(sampling: Sampling, logits: torch.Tensor, count: int) -> list[int]:
    """Tokens at `count` positions of one request whose logits are always the same."""
    return sample(logits.expand(count, -1), [Draw(sampling, position) for position in range(count)])


def read(**params: Any) -> Sampling:
    return sampling_of(
        SamplingParams(**params), vocab_size=100, eos_token_ids=(2,), seeds=random.Random(5)
    )


def test_temperature_zero_takes_the_likeliest() -> None:
    assert drawn(GREEDY, LOGITS, 3) == [int(LOGITS.argmax())] * 3


@given(
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 100.0]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10_000),
    others=st.integers(0, 5),
)
@settings(deadline=None)
def test_a_draw_does_not_depend_on_the_batch_beside_it(
    temperature: float, top_k: int, top_p: float, seed: int, position: int, others: int
) -> None:
    own = Draw(
        replace(WARM, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed), position
    )
    alone = sample(LOGITS[None], [own])
    rows = torch.cat([torch.randn(others, len(LOGITS)), LOGITS[None]])
    together = sample(rows, [*(Draw(WARM, place) for place in range(others)), own])
    assert together[-1:] == alone


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    count = 4000
    for temperature in (0.7, 1.0, 2.0):
        tokens = torch.tensor(drawn(replace(WARM, temperature=temperature), logits, count))
        seen = tokens.bincount(minlength=5) / count
        expected = (logits / temperature).softmax(dim=-1)
        # Four standard deviations of a share of `count` draws.
        assert ((seen - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


@given(top_k=st.integers(1, 700), top_p=st.floats(0.01, 1.0), temperature=st.floats(0.1, 3.0))
@settings(deadline=None, max_examples=30)
def test_only_tokens_among_top_k_and_top_p_are_drawn(
    top_k: int, top_p: float, temperature: float
) -> None:
    allowed = naive_allowed(LOGITS, temperature, top_k, top_p)
    sampling = replace(WARM, temperature=temperature, top_k=top_k, top_p=top_p)
    assert set(drawn(sampling, LOGITS, 40)) <= allowed


def naive_allowed(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> set[int]:
    order = logits.argsort(descending=True)[:top_k]
    probabilities = (logits[order] / temperature).softmax(dim=-1)
    total, allowed = 0.0, set()
    for token, probability in zip(order.tolist(), probabilities.tolist(), strict=True):
        if total > top_p + 1e-5:  # one token at the edge may fall either way
            break
        allowed.add(token)
        total += probability
    return allowed


def test_every_token_within_top_p_is_drawn_sometimes() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(drawn(replace(WARM, top_p=0.7), logits, 200)) == {0, 1}
    assert set(drawn(replace(WARM, top_p=0.85), logits, 200)) == {0, 1, 2}
    assert set(drawn(replace(WARM, top_k=3), logits, 200)) == {0, 1, 2}
    assert set(drawn(replace(WARM, top_p=1e-9), logits, 50)) == {0}


def test_a_flat_distribution_needs_more_than_the_first_guess_of_top_p() -> None:
    tokens = drawn(replace(WARM, top_p=0.9), torch.zeros(600), 3000)
    assert 500 < len(set(tokens)) <= 541


def test_extreme_logits_and_temperatures_give_the_likeliest() -> None:
    logits = torch.tensor([-3e38, 3e38, 0.0, -torch.inf])
    for temperature in (1e-45, 1e-6, 1.0):
        assert set(drawn(replace(WARM, temperature=temperature), logits, 20)) == {1}


def test_uniform_numbers_are_below_one_and_differ_by_seed_and_position() -> None:
    numbers = {uniform(seed, position) for seed in range(40) for position in range(40)}
    assert len(numbers) == 1600
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.03


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    assert drawn(WARM, LOGITS, 20) == drawn(WARM, LOGITS, 20)
    assert drawn(WARM, LOGITS, 20) != drawn(replace(WARM, seed=2), LOGITS, 20)


def test_unset_parameters_mean_greedy_decoding_of_128_tokens() -> None:
    sampling = read()
    assert sampling == replace(
        GREEDY, max_tokens=128, seed=sampling.seed, stop_token_ids=frozenset({2})
    )


def test_a_seed_is_drawn_only_where_none_is_given() -> None:
    assert read(seed=0).seed == 0
    assert read(seed=2**64 - 1).seed == 2**64 - 1
    assert read().seed == random.Random(5).getrandbits(64)


def test_stop_tokens_join_the_end_of_sequence_unless_it_is_ignored() -> None:
    assert read(stop_token_ids=[7, 9]).stop_token_ids == {2, 7, 9}
    assert read(stop_token_ids=[7], ignore_eos=True).stop_token_ids == {7}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 100.5}, "temperature is 100.5, expected 0 to 100"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": -1.0}, "top_p is -1.0"),
        ({"top_p": 1.001}, "top_p is 1.00"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"stop": ["x"] * 17}, "17 stop texts"),
        ({"stop": ["x", ""]}, "stop text is empty"),
        ({"stop_token_ids": [1] * 65}, "65 stop token ids"),
        ({"stop_token_ids": [3, 100]}, "stop token id 100 is outside the vocabulary of 100"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_value(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(**params)


def test_values_at_the_edges_are_taken() -> None:
    sampling = read(max_tokens=1, temperature=100.0, top_p=1.0, top_k=2**32 - 1, stop=["x"] * 16)
    assert (sampling.max_tokens, sampling.temperature) == (1, 100.0)
    assert drawn(replace(sampling, seed=1), LOGITS, 3) == drawn(
        replace(sampling, top_k=0, seed=1), LOGITS, 3
    )
