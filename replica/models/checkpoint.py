"""What a loader reads from a model's files, whatever their format."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from proto.prefixlb.v1.replica_pb2 import TextRules
from replica.models.interface import ModelConfig


@dataclass(frozen=True)
class Checkpoint:
    """A model and its tokenizer, ready to build from."""

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    """By their Hugging Face names, in any floating type."""
    inverse_frequencies: torch.Tensor
    """Of RoPE, scaled if the model scales them: float32, [head_dim / 2]."""
    tokenizer_json: bytes
    """As the `tokenizers` package reads it."""
    rules: TextRules


def inverse_frequencies(theta: float, head_dim: int) -> torch.Tensor:
    """Rotations a position, in radians, of each pair of a head (https://arxiv.org/abs/2104.09864)."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
