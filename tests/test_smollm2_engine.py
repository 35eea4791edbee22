"""The real model through the real engine: the cache changes what is computed, never the answer."""

from pathlib import Path

import pytest
import torch

from proto.text import TextCodec
from replica.models.load import load_model
from tests.engine_rig import EngineRig
from tests.runner import Run, Runner

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

TIE = 1e-3
"""Logits this near may be ordered either way: float32 sums in another order differ by 1e-4."""

NEW_TOKENS = 12


SYSTEM = "You are a careful assistant who answers questions about cities and their history. "
QUESTIONS = (
    "The capital of France is",
    "The oldest bridge of Prague is",
    "In the year 1666 the city of London",
    "Rome was not built in a day, because",
)


def assert_same(runner: Runner, prompt: list[int], ours: list[int], expected: list[int]) -> None:
    """Equal tokens, up to a first difference between two whose logits are a tie."""
    for place, (token, other) in enumerate(zip(ours, expected, strict=True)):
        if token != other:
            runner.forget()
            logits = runner.forward((Run(), [*prompt, *ours[:place]], True))[0]
            assert abs(logits[token] - logits[other]) < TIE, f"token {place}"
            return


def test_tokens_are_the_same_cold_cached_evicted_and_in_company(smollm2_path: Path) -> None:
    loaded = load_model(smollm2_path, torch.device("cpu"))
    runner = Runner(loaded.model, num_slots=256)
    codec: TextCodec = loaded.codec
    prompts = [codec.encode(SYSTEM + question) for question in QUESTIONS]
    roomy = EngineRig(model=loaded.model, slots=1024, chunk_size=8)
    cold = []
    for place, prompt in enumerate(prompts):  # each in a namespace of its own
        cold.append(roomy.generate(prompt, NEW_TOKENS, cache_salt=str(place)))
        request = roomy.submit(prompt, NEW_TOKENS, cache_salt=str(place))
        roomy.run()
        assert request.cached_tokens == len(prompt) - 1
        assert_same(runner, prompt, roomy.answers[request].tokens, cold[-1])
    together = [roomy.submit(prompt, NEW_TOKENS) for prompt in prompts]
    roomy.run()
    assert sum(request.cached_tokens for request in together) > 0
    for request, prompt, expected in zip(together, prompts, cold, strict=True):
        assert_same(runner, prompt, roomy.answers[request].tokens, expected)
    small = EngineRig(model=loaded.model, slots=max(map(len, prompts)) + NEW_TOKENS + 8)
    for place in (0, 1, 2, 3, 0):
        answer = small.generate(prompts[place], NEW_TOKENS)
        assert_same(runner, prompts[place], answer, cold[place])
    assert small.tree.stats().evicted_total > 0
