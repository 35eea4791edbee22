"""The Llama family: grouped-query attention, rotary positions, RMSNorm, SwiGLU."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from proto.errors import InvalidModel
from replica.models.attention import AttentionPlan, attend
from replica.models.interface import Batch, ModelConfig, SlotPool
from replica.models.linear import Linear


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer; what reads the same input is one matrix."""

    attention_norm: torch.Tensor
    qkv: Linear
    """To (heads + 2 * kv_heads) * head_dim."""
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    """To 2 * intermediate."""
    down: Linear


class LlamaModel:
    """A decoder of the Llama family; see `replica.models.interface.Model`."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        inverse_frequencies: torch.Tensor,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`tensors` by their Hugging Face names; `inverse_frequencies` as in `Checkpoint`.

        Raises InvalidModel on a missing, misshapen or unknown tensor.
        """
        self.config = config
        self.device = device
        self.dtype = dtype
        self._inverse_frequencies = inverse_frequencies.to(device, torch.float32)
        weights = Weights(tensors, device, dtype)
        heads, kv_heads, hidden = config.num_heads, config.num_kv_heads, config.hidden_size
        inner = config.intermediate_size
        q_size, kv_size = heads * config.head_dim, kv_heads * config.head_dim
        self._embedding = weights.take(
            "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self._layers = []
        for index in range(config.num_layers):
            name = f"model.layers.{index}"
            q, k, v = (f"{name}.self_attn.{part}_proj" for part in "qkv")
            bias = (
                weights.stack((f"{q}.bias", q_size), (f"{k}.bias", kv_size), (f"{v}.bias", kv_size))
                if f"{q}.bias" in tensors
                else None
            )
            self._layers.append(
                Layer(
                    attention_norm=weights.take(f"{name}.input_layernorm.weight", hidden),
                    qkv=Linear(
                        weights.stack(
                            (f"{q}.weight", q_size, hidden),
                            (f"{k}.weight", kv_size, hidden),
                            (f"{v}.weight", kv_size, hidden),
                        ),
                        bias,
                    ),
                    attention_out=Linear(
                        weights.take(f"{name}.self_attn.o_proj.weight", hidden, q_size)
                    ),
                    mlp_norm=weights.take(f"{name}.post_attention_layernorm.weight", hidden),
                    gate_up=Linear(
                        weights.stack(
                            (f"{name}.mlp.gate_proj.weight", inner, hidden),
                            (f"{name}.mlp.up_proj.weight", inner, hidden),
                        )
                    ),
                    down=Linear(weights.take(f"{name}.mlp.down_proj.weight", hidden, inner)),
                )
            )
        self._norm = weights.take("model.norm.weight", hidden)
        self._head = (
            Linear(self._embedding, shared=True)
            if config.tie_word_embeddings
            else Linear(weights.take("lm_head.weight", config.vocab_size, hidden))
        )
        weights.finish()

    def forward(self, batch: Batch, pool: SlotPool) -> torch.Tensor:
        """See `Model.forward`."""
        config = self.config
        plan = AttentionPlan.of(batch.segments, self.device, self.dtype)
        cos, sin = self._rotation(plan.positions)
        q_heads, kv_heads = config.num_heads, config.num_kv_heads
        hidden = F.embedding(batch.token_ids.to(self.device), self._embedding)
        tokens = len(hidden)
        for layer, keys, values in zip(self._layers, pool.keys, pool.values, strict=True):
            normed = self._rms_norm(hidden, layer.attention_norm)
            qkv = layer.qkv(normed).view(tokens, -1, config.head_dim)
            rotated = rotate(qkv[:, : q_heads + kv_heads], cos, sin)
            keys.index_copy_(0, plan.new_slots, rotated[:, q_heads:])
            values.index_copy_(0, plan.new_slots, qkv[:, q_heads + kv_heads :])
            attended = attend(rotated[:, :q_heads], keys, values, plan)
            hidden = hidden + layer.attention_out(attended)
            normed = self._rms_norm(hidden, layer.mlp_norm)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        last = self._rms_norm(hidden.index_select(0, plan.logit_rows), self._norm)
        return self._head(last).float()

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of each position, [tokens, 1, head_dim]."""
        angles = positions[:, None].float() * self._inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        return (
            torch.cat((cos, cos), dim=-1)[:, None].to(self.dtype),
            torch.cat((-sin, sin), dim=-1)[:, None].to(self.dtype),
        )


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of [tokens, heads, head_dim], in pairs across a head's halves."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


class Weights:
    """Named tensors, taken one after the other until none is left."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._left = dict(tensors)
        self._device = device
        self._dtype = dtype

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of that name and shape. Raises InvalidModel if there is none."""
        return self._checked(name, shape).to(self._device, self._dtype)

    def stack(self, *parts: tuple[str, *tuple[int, ...]]) -> torch.Tensor:
        """Several tensors, given as (name, *shape), along the first dimension."""
        tensors = [self._checked(name, tuple(shape)) for name, *shape in parts]
        return torch.cat(tensors).to(self._device, self._dtype)

    def finish(self) -> None:
        """Raises InvalidModel if tensors are left: they were made for another model."""
        if self._left:
            names = sorted(self._left)
            shown = ", ".join(names[:3])
            raise InvalidModel(f"{len(names)} tensors that no Llama model has, such as {shown}")

    def _checked(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise InvalidModel(f"tensor {name} is missing")
        if tensor.shape != shape:
            raise InvalidModel(f"tensor {name} has shape {[*tensor.shape]}, expected {[*shape]}")
        if not tensor.is_floating_point():
            raise InvalidModel(f"tensor {name} is of {tensor.dtype}, expected a floating type")
        return tensor
