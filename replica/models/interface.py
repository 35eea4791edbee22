"""What the engine asks of a model: a forward pass over a mixed batch, in and out of slots."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-family decoder."""

    model_id: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """One request's part of a batch: its next `num_new` tokens.

    `slots` (int64, [context]) are the slots of all its positions 0..context, where
    context = cached and computed before + num_new. The pass writes keys and values of the last
    `num_new` positions to `slots[-num_new:]`, and reads those of all positions.
    """

    num_new: int
    slots: torch.Tensor
    wants_logits: bool
    """Whether the last new token's logits are needed; false in the middle of a prompt."""


@dataclass(frozen=True)
class Batch:
    """Tokens of all segments, one after the other (int64, [sum of num_new])."""

    token_ids: torch.Tensor
    segments: tuple[Segment, ...]


class SlotPool(Protocol):
    """Keys and values by slot."""

    keys: list[torch.Tensor]
    """One tensor [num_slots, num_kv_heads, head_dim] a layer."""
    values: list[torch.Tensor]


class Model(Protocol):
    """A model the engine can run."""

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    """Of weights, keys and values: float32 on CPU, bfloat16 on CUDA."""

    def forward(self, batch: Batch, pool: SlotPool) -> torch.Tensor:
        """Logits (float32, [segments that want them, vocab_size]) of their last tokens.

        Called under torch.inference_mode, from one thread.
        """
