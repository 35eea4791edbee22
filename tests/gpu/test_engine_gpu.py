"""The engine on a CUDA device in bfloat16. Run by hand on a machine with a GPU:
`python -m pytest tests/gpu`; elsewhere it is skipped.
"""

import random

import pytest
import torch

from replica.models.load import build_model
from tests.engine_rig import EngineRig
from tests.runner import Run, Runner
from tests.tiny_model import VOCAB_SIZE, tiny_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

TOLERANCE = 0.08
"""Of the largest logit: bfloat16 keeps 8 bits, and two layers add their rounding up."""


def numbers(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


def logits(device: str, prompt: list[int]) -> torch.Tensor:
    """Of the token after `prompt` (float32, [vocab_size], on CPU)."""
    runner = Runner(build_model(tiny_checkpoint(), torch.device(device)))
    return runner.forward((Run(), prompt, True))[0].float().cpu()


def test_prefill_gives_the_logits_of_float32_on_cpu() -> None:
    for length in (1, 17, 300):
        prompt = numbers(length, seed=length)
        ours, expected = logits("cuda", prompt), logits("cpu", prompt)
        assert (ours - expected).abs().max() < TOLERANCE * expected.abs().max()


def test_cached_tokens_equal_uncached_ones() -> None:
    model = build_model(tiny_checkpoint(), torch.device("cuda"))
    assert model.dtype is torch.bfloat16
    for seed in range(4):
        prompt = numbers(200, seed)
        rig = EngineRig(model=model, chunk_size=512)
        cold = rig.generate(prompt, 8)
        cached = rig.submit(prompt, 8)
        rig.run()
        assert cached.cached_tokens == 199
        answer = rig.answers[cached].tokens
        for place, (token, other) in enumerate(zip(answer, cold, strict=True)):
            if token != other:  # only where float32 itself calls the two a tie
                exact = logits("cpu", [*prompt, *cold[:place]])
                assert abs(exact[token] - exact[other]) < TOLERANCE * exact.abs().max()
                break
