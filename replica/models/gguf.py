"""Models from GGUF files, as llama.cpp writes them."""

import re
from pathlib import Path

import torch

from proto.errors import InvalidModel
from replica.models.checkpoint import Checkpoint, inverse_frequencies
from replica.models.gguf_file import GGUFFile
from replica.models.gguf_tokenizer import eos_token_ids, text_rules, tokenizer_json
from replica.models.interface import ModelConfig

ARCHITECTURE = "llama"

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TENSOR_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


def read_gguf(path: Path) -> Checkpoint:
    """Read a GGUF file. Raises InvalidModel if it is broken or of a kind we cannot run."""
    file = GGUFFile.open(path)
    try:
        config = model_config(file, model_id=path.stem)
        tokenizer = tokenizer_json(file.metadata)
        rules = text_rules(file.metadata)
    except KeyError as error:
        raise InvalidModel(f"{path} lacks the value {error}") from None
    frequencies = inverse_frequencies(config.rope_theta, config.head_dim)
    return Checkpoint(config, load_tensors(file, config), frequencies, tokenizer, rules)


def model_config(file: GGUFFile, model_id: str) -> ModelConfig:
    metadata = file.metadata
    if (architecture := metadata["general.architecture"]) != ARCHITECTURE:
        raise InvalidModel(f"GGUF architecture {architecture!r}, expected {ARCHITECTURE!r}")
    if (scaling := metadata.get("llama.rope.scaling.type", "none")) != "none":
        raise InvalidModel(f"RoPE scaling {scaling!r} is not supported in GGUF files")
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    head_dim = metadata.get("llama.attention.key_length", hidden // heads)
    if (rotated := metadata.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise InvalidModel(f"RoPE over {rotated} of {head_dim} dimensions is not supported")
    return ModelConfig(
        model_id=model_id,
        num_layers=metadata["llama.block_count"],
        hidden_size=hidden,
        intermediate_size=metadata["llama.feed_forward_length"],
        num_heads=heads,
        num_kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        context_length=metadata["llama.context_length"],
        rope_theta=metadata.get("llama.rope.freq_base", 10_000.0),
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        tie_word_embeddings="output.weight" not in file.tensors,
        eos_token_ids=eos_token_ids(metadata),
    )


def load_tensors(file: GGUFFile, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All tensors in float32 by their Hugging Face names."""
    tensors = {}
    for name, stored in file.tensors.items():
        match = TENSOR_NAME.fullmatch(name)
        if match is None or match["part"] not in NAMES:
            raise InvalidModel(f"unknown tensor {name}")
        tensor = stored.load()
        if match["part"] == "attn_q":
            tensor = pairs_as_halves(tensor, config.num_heads)
        elif match["part"] == "attn_k":
            tensor = pairs_as_halves(tensor, config.num_kv_heads)
        layer = f"model.layers.{match['layer']}." if match["layer"] else ""
        tensors[f"{layer}{NAMES[match['part']]}.{match['kind']}"] = tensor
    return tensors


def pairs_as_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: it rotates neighbours, we rotate halves."""
    pairs = rows.view(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
