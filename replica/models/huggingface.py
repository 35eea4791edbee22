"""Models from Hugging Face directories: config.json, safetensors, tokenizer.json."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from proto.errors import InvalidModel
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import parse_tokenizer
from replica.models.checkpoint import Checkpoint, inverse_frequencies
from replica.models.interface import ModelConfig

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
RECOMPUTED = "rotary_emb.inv_freq"
"""Ends the name of a tensor that old checkpoints carry and that follows from the config."""


def read_directory(path: Path) -> Checkpoint:
    """Read a directory. Raises InvalidModel if a file is missing, broken or of an unknown kind."""
    config = read_json(path / "config.json")
    eos = eos_token_ids(path, config)
    try:
        shape = model_config(config, path.resolve().name, eos)
        frequencies = scaled_frequencies(shape, rope_values(config))
    except KeyError as error:
        raise InvalidModel(f"{path / 'config.json'} lacks {error}") from None
    tokenizer = path / "tokenizer.json"
    if not tokenizer.exists():
        raise InvalidModel(f"{tokenizer} is missing")
    tokenizer_json = tokenizer.read_bytes()
    return Checkpoint(
        config=shape,
        tensors=load_tensors(path, tied=shape.tie_word_embeddings),
        inverse_frequencies=frequencies,
        tokenizer_json=tokenizer_json,
        rules=text_rules(path, parse_tokenizer(tokenizer_json), eos),
    )


def eos_token_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end an answer, by the config or by generation_config.json."""
    generation = path / "generation_config.json"
    sources = [config, read_json(generation) if generation.exists() else {}]
    found: set[int] = set()
    for source in sources:
        ids = source.get("eos_token_id")
        found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return (*sorted(found),)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidModel(f"{path} is missing") from None
    except ValueError as error:
        raise InvalidModel(f"{path} is not JSON: {error}") from None


def model_config(
    config: Mapping[str, Any], model_id: str, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise InvalidModel(
            f"architecture {architecture} is not supported, only {', '.join(ARCHITECTURES)}"
        )
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise InvalidModel(f"activation {activation!r} is not supported, only 'silu'")
    windowed = config.get("use_sliding_window", architecture == "MistralForCausalLM")
    if windowed and (window := config.get("sliding_window")) is not None:
        raise InvalidModel(f"sliding window attention ({window} tokens) is not supported")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ModelConfig(
        model_id=model_id,
        num_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        intermediate_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        vocab_size=config["vocab_size"],
        context_length=config["max_position_embeddings"],
        rope_theta=float(rope_values(config).get("rope_theta", 10_000.0)),
        rms_norm_eps=config["rms_norm_eps"],
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        eos_token_ids=eos_token_ids,
    )


def rope_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE's settings, from `rope_parameters` or the older `rope_theta` and `rope_scaling`."""
    values = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    if "rope_theta" in config:
        values.setdefault("rope_theta", config["rope_theta"])
    return values


def scaled_frequencies(config: ModelConfig, rope: Mapping[str, Any]) -> torch.Tensor:
    """Inverse frequencies under RoPE type "default" or "llama3"."""
    plain = inverse_frequencies(config.rope_theta, config.head_dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return plain
    if kind != "llama3":
        raise InvalidModel(f"RoPE type {kind!r} is not supported, only 'default' and 'llama3'")
    # Short wavelengths stay, long ones are stretched by `factor`, those between are blended.
    wavelength = 2 * math.pi / plain
    old_context, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = ((old_context / wavelength - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = keep * plain + (1 - keep) * plain / factor
    return scaled


def load_tensors(path: Path, *, tied: bool) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the shards its index names."""
    index = path / "model.safetensors.index.json"
    single = path / "model.safetensors"
    if index.exists():
        files = [path / name for name in sorted({*read_json(index)["weight_map"].values()})]
    elif single.exists():
        files = [single]
    else:
        raise InvalidModel(f"{path} has neither {single.name} nor {index.name}")
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except FileNotFoundError:
            raise InvalidModel(f"{file} is missing, but {index.name} names it") from None
        except SafetensorError as error:
            raise InvalidModel(f"{file} is broken: {error}") from error
    if tied:
        tensors.pop("lm_head.weight", None)
    return {name: value for name, value in tensors.items() if not name.endswith(RECOMPUTED)}


def text_rules(path: Path, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> TextRules:
    settings = read_json(path / "tokenizer_config.json")
    template_file = path / "chat_template.jinja"
    template = (
        template_file.read_text() if template_file.exists() else settings.get("chat_template")
    )
    if isinstance(template, list):  # several, by name
        template = {named["name"]: named["template"] for named in template}.get("default")
    bos = token_text(settings.get("bos_token"))
    return TextRules(
        chat_template=template or "",
        bos_token=bos,
        eos_token=token_text(settings.get("eos_token")),
        eos_token_ids=eos_token_ids,
        # What the tokenizer's own post-processor puts before a text.
        add_bos=bool(bos) and tokenizer.encode("").tokens[:1] == [bos],
    )


def token_text(token: Any) -> str:
    """A token in tokenizer_config.json: a text, an object with its `content`, or null."""
    return token["content"] if isinstance(token, dict) else token or ""
