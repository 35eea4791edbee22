"""Drives a model's forward pass without an engine: sequences in scattered slots of one pool."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from replica.models.interface import Batch, Model, Segment


@dataclass
class Run:
    """One sequence: the slots of its computed tokens, in order."""

    slots: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class Runner:
    """A model and a pool that is NaN where nothing was written, so that a stray read shows."""

    def __init__(self, model: Model, num_slots: int = 4096, seed: int = 0) -> None:
        config = model.config
        shape = (num_slots, config.num_kv_heads, config.head_dim)
        self.model = model
        self.keys, self.values = (
            [
                torch.full(shape, torch.nan, device=model.device, dtype=model.dtype)
                for _ in range(config.num_layers)
            ]
            for _ in range(2)
        )
        self._order = torch.randperm(num_slots, generator=torch.Generator().manual_seed(seed))
        self._used = 0

    def forward(self, *parts: tuple[Run, Sequence[int], bool]) -> torch.Tensor:
        """Append tokens to runs, given as (run, tokens, wants_logits), in one pass; its logits."""
        segments = []
        for run, tokens, wants_logits in parts:
            run.slots = torch.cat((run.slots, self._take(len(tokens))))
            segments.append(Segment(len(tokens), run.slots, wants_logits))
        token_ids = torch.tensor([token for _, tokens, _ in parts for token in tokens])
        with torch.inference_mode():
            return self.model.forward(Batch(token_ids, tuple(segments)), self)

    def fork(self, run: Run, length: int) -> Run:
        """Another run that shares the slots of the first `length` tokens."""
        return Run(run.slots[:length])

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest `count` tokens after `prompt`, alone in the batch."""
        run = Run()
        generated = [int(self.forward((run, prompt, True)).argmax())]
        while len(generated) < count:
            generated.append(int(self.forward((run, generated[-1:], True)).argmax()))
        return generated

    def forget(self) -> None:
        """Give all slots out anew; runs made before are void."""
        self._used = 0

    def _take(self, count: int) -> torch.Tensor:
        self._used += count
        if self._used > len(self._order):
            raise MemoryError(f"the runner's pool has {len(self._order)} slots, too few")
        return self._order[self._used - count : self._used]
