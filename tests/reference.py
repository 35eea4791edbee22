"""transformers' own Llama, built from the weights our loaders read."""

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from replica.models.checkpoint import Checkpoint


def reference_model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """A float32 LlamaForCausalLM with the checkpoint's weights."""
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in checkpoint.tensors,
            attn_implementation="sdpa",
        )
    ).eval()
    tensors = dict(checkpoint.tensors)
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model


class ReferenceRun:
    """One sequence of the reference model, with its own cache."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)

    def forward(self, tokens: list[int]) -> torch.Tensor:
        """Append tokens; the logits [vocab_size] of the last one."""
        with torch.inference_mode():
            answer = self._model(
                input_ids=torch.tensor([tokens]),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return answer.logits[0, -1]
