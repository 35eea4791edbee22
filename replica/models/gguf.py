"""Models from GGUF files, as llama.cpp writes them."""

import re
from pathlib import Path

import torch

from proto.errors import InvalidModel
from replica.models.checkpoint import Checkpoint, inverse_frequencies
from replica.models.fields import Fields
from replica.models.gguf_file import GGUFFile
from replica.models.gguf_tokenizer import Vocabulary, eos_token_ids, text_rules, tokenizer_json
from replica.models.interface import ModelConfig

ARCHITECTURE = "llama"
OUTPUT = "output.weight"

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
    metadata = Fields(path, file.metadata)
    vocabulary = Vocabulary.of(metadata)
    config = model_config(metadata, vocabulary, model_id=path.stem, tied=OUTPUT not in file.tensors)
    try:
        tensors = load_tensors(file, config)
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error}") from error
    return Checkpoint(
        config=config,
        tensors=tensors,
        inverse_frequencies=inverse_frequencies(config.rope_theta, config.head_dim),
        tokenizer_json=tokenizer_json(metadata, vocabulary),
        rules=text_rules(metadata, vocabulary),
    )


def model_config(
    metadata: Fields, vocabulary: Vocabulary, *, model_id: str, tied: bool
) -> ModelConfig:
    if metadata.get("general.architecture", str) != ARCHITECTURE:
        raise metadata.wrong("general.architecture", repr(ARCHITECTURE))
    if metadata.get("llama.rope.scaling.type", str, "none") != "none":
        raise metadata.wrong("llama.rope.scaling.type", "'none'")
    hidden = metadata.count("llama.embedding_length")
    heads = metadata.count("llama.attention.head_count")
    head_dim = metadata.count("llama.attention.key_length", hidden // heads)
    if metadata.count("llama.rope.dimension_count", head_dim) != head_dim:
        raise metadata.wrong("llama.rope.dimension_count", f"{head_dim}, all dimensions of a head")
    return ModelConfig(
        model_id=model_id,
        num_layers=metadata.count("llama.block_count"),
        hidden_size=hidden,
        intermediate_size=metadata.count("llama.feed_forward_length"),
        num_heads=heads,
        num_kv_heads=metadata.count("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=len(vocabulary.tokens),
        context_length=metadata.count("llama.context_length"),
        rope_theta=metadata.number("llama.rope.freq_base", 10_000.0),
        rms_norm_eps=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=tied,
        eos_token_ids=eos_token_ids(metadata, vocabulary),
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
            tensor = pairs_as_halves(name, tensor, config.num_heads)
        elif match["part"] == "attn_k":
            tensor = pairs_as_halves(name, tensor, config.num_kv_heads)
        layer = f"model.layers.{match['layer']}." if match["layer"] else ""
        tensors[f"{layer}{NAMES[match['part']]}.{match['kind']}"] = tensor
    return tensors


def pairs_as_halves(name: str, rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: it rotates neighbours, we rotate halves."""
    if rows.ndim == 0 or rows.shape[0] % (2 * num_heads):
        raise InvalidModel(
            f"tensor {name} has shape {[*rows.shape]}, expected rows for {num_heads} heads"
        )
    pairs = rows.view(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
