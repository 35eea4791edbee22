"""The forward pass on a tiny model: slots, chunks and batches change nothing."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import InvalidModel
from replica.models.llama import LlamaModel
from tests.reference import ReferenceRun, reference_model
from tests.runner import Run, Runner
from tests.tiny_model import CONFIG, tiny_checkpoint, tiny_model

ROUNDING = {"rtol": 1e-4, "atol": 1e-4}
"""Between two orders of the same float32 sums; logits here are about 10."""

PROMPT = [(7 * place * place + 3 * place) % 250 for place in range(60)]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model()[0], num_slots=1024)


@pytest.fixture(scope="module")
def whole(runner: Runner) -> torch.Tensor:
    """Logits after the prompt, computed in one piece and alone."""
    return runner.forward((Run(), PROMPT, True))


@pytest.fixture(autouse=True)
def reuse_slots(runner: Runner) -> None:
    runner.forget()


def test_logits_equal_those_of_transformers(whole: torch.Tensor) -> None:
    expected = ReferenceRun(reference_model(tiny_checkpoint())).forward(PROMPT)
    torch.testing.assert_close(whole[0], expected, **ROUNDING)


@given(cuts=st.sets(st.integers(1, len(PROMPT) - 1), max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(
    runner: Runner, whole: torch.Tensor, cuts: set[int]
) -> None:
    runner.forget()
    run = Run()
    for begin, end in pairwise([0, *sorted(cuts), len(PROMPT)]):
        logits = runner.forward((run, PROMPT[begin:end], True))
    torch.testing.assert_close(logits, whole, **ROUNDING)


def test_a_request_in_a_mixed_batch_gets_the_logits_it_gets_alone(runner: Runner) -> None:
    prompts = [
        PROMPT[start : start + length] for start, length in ((0, 9), (5, 1), (8, 30), (2, 17))
    ]
    alone = [runner.forward((Run(), prompt, True)) for prompt in prompts]
    # Two are one token from their end and decode, one is in the middle of its prompt, one begins.
    runs = [Run() for _ in prompts]
    runner.forward((runs[0], prompts[0][:-1], False), (runs[2], prompts[2][:11], False))
    runner.forward((runs[3], prompts[3][:-1], False))
    together = runner.forward(
        (runs[0], prompts[0][-1:], True),
        (runs[2], prompts[2][11:], True),
        (runs[1], prompts[1], True),
        (runs[3], prompts[3][-1:], True),
    )
    expected = torch.cat([alone[0], alone[2], alone[1], alone[3]])
    torch.testing.assert_close(together, expected, **ROUNDING)


def test_a_shared_prefix_is_used_where_it_lies(runner: Runner, whole: torch.Tensor) -> None:
    first = Run()
    runner.forward((first, PROMPT, False))
    before = [keys.clone() for keys in runner.keys]
    second = runner.fork(first, 41)
    logits = runner.forward((second, PROMPT[41:], True))
    torch.testing.assert_close(logits, whole, **ROUNDING)
    for keys, old in zip(runner.keys, before, strict=True):
        torch.testing.assert_close(keys[first.slots], old[first.slots], rtol=0, atol=0)


def test_only_segments_that_want_logits_get_a_row(runner: Runner, whole: torch.Tensor) -> None:
    assert runner.forward((Run(), PROMPT[:5], False)).shape == (0, CONFIG.vocab_size)
    both = runner.forward((Run(), PROMPT[:5], False), (Run(), PROMPT, True))
    torch.testing.assert_close(both, whole, **ROUNDING)


def test_bfloat16_stays_near_float32(whole: torch.Tensor) -> None:
    checkpoint = tiny_checkpoint()
    with torch.inference_mode():
        model = LlamaModel(
            checkpoint.config,
            checkpoint.tensors,
            checkpoint.inverse_frequencies,
            torch.device("cpu"),
            torch.bfloat16,
        )
    half = Runner(model, num_slots=128)
    run = Run()
    half.forward((run, PROMPT[:-1], False))
    logits = half.forward((run, PROMPT[-1:], True))
    assert half.keys[0].dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert torch.cosine_similarity(logits, whole).item() > 0.99


def test_logits_depend_on_every_token_of_the_context(runner: Runner, whole: torch.Tensor) -> None:
    for place in (0, 20, len(PROMPT) - 1):
        changed = [*PROMPT]
        changed[place] = (changed[place] + 1) % 250
        assert not torch.allclose(runner.forward((Run(), changed, True)), whole, **ROUNDING)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.norm.weight": torch.ones(3)}, r"has shape \[3\], expected \[64\]"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, "1 tensors that no Llama"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: dict[str, torch.Tensor | None], message: str
) -> None:
    checkpoint = tiny_checkpoint()
    changed = {**checkpoint.tensors, **change}
    tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
    with pytest.raises(InvalidModel, match=message):
        LlamaModel(
            CONFIG,
            tensors,
            checkpoint.inverse_frequencies,
            torch.device("cpu"),
            torch.float32,
        )
