"""Stand-ins for unit tests: a clock moved by hand, a model whose answers can be foretold."""

from collections.abc import Sequence

import torch

from replica.models.interface import Batch, ModelConfig, SlotPool

VOCAB_SIZE = 997


class FakeClock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def next_token(tokens: Sequence[int] | torch.Tensor) -> int:
    """What `FakeModel` says after `tokens`: every token and its place count."""
    known = torch.as_tensor(tokens)
    places = torch.arange(len(known))
    return int(((known + 1) * (places * places + 7)).sum()) % VOCAB_SIZE


class FakeModel:
    """Writes token and place where keys and values go; the next token follows from all it reads.

    One wrong slot in a table, and the answer is another one.
    """

    config = ModelConfig(
        model_id="fake",
        num_layers=1,
        hidden_size=1,
        intermediate_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        vocab_size=VOCAB_SIZE,
        context_length=4096,
        rope_theta=1.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        eos_token_ids=(VOCAB_SIZE - 1,),
    )
    device = torch.device("cpu")
    dtype = torch.int64

    def __init__(self, clock: FakeClock, forward_s: float = 0.01) -> None:
        """A pass takes `forward_s` on `clock`."""
        self.batches: list[Batch] = []
        self._clock = clock
        self._forward_s = forward_s

    def forward(self, batch: Batch, pool: SlotPool) -> torch.Tensor:
        self._clock.advance(self._forward_s)
        self.batches.append(batch)
        keys, values = pool.keys[0].view(-1), pool.values[0].view(-1)
        taken = 0
        answers = []
        for segment in batch.segments:
            context = len(segment.slots)
            new = segment.slots[context - segment.num_new :]
            keys[new] = batch.token_ids[taken : taken + segment.num_new]
            values[new] = torch.arange(context - segment.num_new, context)
            taken += segment.num_new
        assert taken == len(batch.token_ids)
        for segment in batch.segments:
            if segment.wants_logits:
                places = values[segment.slots]
                assert torch.equal(places, torch.arange(len(segment.slots)))
                answers.append(next_token(keys[segment.slots]))
        logits = torch.zeros(len(answers), VOCAB_SIZE)
        logits[torch.arange(len(answers)), torch.tensor(answers, dtype=torch.int64)] = 1.0
        return logits
