"""Models from Hugging Face directories: config.json, safetensors, tokenizer.json."""

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from proto.errors import InvalidModel
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import parse_tokenizer
from replica.models.checkpoint import Checkpoint, inverse_frequencies
from replica.models.fields import Fields
from replica.models.interface import ModelConfig

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
EOS = "eos_token_id"
RECOMPUTED = "rotary_emb.inv_freq"
"""Ends the name of a tensor that old checkpoints carry and that follows from the config."""


def read_directory(path: Path) -> Checkpoint:
    """Read a directory. Raises InvalidModel if a file is missing, broken or of an unknown kind."""
    config = read_object(path / "config.json")
    eos = eos_token_ids(path, config)
    shape = model_config(config, path.resolve().name, eos)
    tokenizer_json = read_bytes(path / "tokenizer.json")
    try:
        tokenizer = parse_tokenizer(tokenizer_json)
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error}") from error
    return Checkpoint(
        config=shape,
        tensors=load_tensors(path, tied=shape.tie_word_embeddings),
        inverse_frequencies=scaled_frequencies(shape, rope_values(config)),
        tokenizer_json=tokenizer_json,
        rules=text_rules(path, tokenizer, eos),
    )


def eos_token_ids(path: Path, config: Fields) -> tuple[int, ...]:
    """Tokens that end an answer, by the config or by generation_config.json."""
    generation = path / "generation_config.json"
    sources = [config, read_object(generation)] if generation.exists() else [config]
    found: set[int] = set()
    for source in sources:
        if source.is_list(EOS):
            found.update(source.items(EOS, int))
        elif EOS in source:
            found.add(source.get(EOS, int))
    return (*sorted(found),)


def read_object(path: Path) -> Fields:
    try:
        return Fields(path, json.loads(read_bytes(path)))
    except ValueError as error:
        raise InvalidModel(f"{path} is not JSON: {error}") from None


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidModel(f"{path} is missing") from None
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error


def model_config(config: Fields, model_id: str, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    architecture = next(iter(config.items("architectures", str)), "none")
    if architecture not in ARCHITECTURES:
        raise config.wrong("architectures", f"first one of {', '.join(ARCHITECTURES)}")
    if config.get("hidden_act", str, "silu") != "silu":
        raise config.wrong("hidden_act", "'silu'")
    windowed = config.get("use_sliding_window", bool, architecture == "MistralForCausalLM")
    if windowed and "sliding_window" in config:
        raise config.wrong("sliding_window", "null: such attention is not supported")
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    vocab_size = config.count("vocab_size")
    if not all(0 <= token_id < vocab_size for token_id in eos_token_ids):
        raise InvalidModel(
            f"{config.source.parent}: {EOS} is {[*eos_token_ids]}, expected ids of the vocabulary "
            f"of {vocab_size} tokens"
        )
    return ModelConfig(
        model_id=model_id,
        num_layers=config.count("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.count("num_key_value_heads", heads),
        head_dim=config.count("head_dim", hidden // heads),
        vocab_size=vocab_size,
        context_length=config.count("max_position_embeddings"),
        rope_theta=rope_values(config).number("rope_theta", 10_000.0),
        rms_norm_eps=config.number("rms_norm_eps"),
        tie_word_embeddings=config.get("tie_word_embeddings", bool, False),
        eos_token_ids=eos_token_ids,
    )


def rope_values(config: Fields) -> Fields:
    """RoPE's settings, from `rope_parameters` or the older `rope_theta` and `rope_scaling`."""
    values: dict[str, object] = {}
    if "rope_theta" in config:
        values["rope_theta"] = config.number("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        values |= config.get(key, dict, {})
    return Fields(config.source, values)


def scaled_frequencies(config: ModelConfig, rope: Fields) -> torch.Tensor:
    """Inverse frequencies under RoPE type "default" or "llama3"."""
    plain = inverse_frequencies(config.rope_theta, config.head_dim)
    key = "rope_type" if "rope_type" in rope else "type"
    if (kind := rope.get(key, str, "default")) == "default":
        return plain
    if kind != "llama3":
        raise rope.wrong(key, "'default' or 'llama3'")
    # Short wavelengths stay, long ones are stretched by `factor`, those between are blended.
    wavelength = 2 * math.pi / plain
    old_context, factor = rope.count("original_max_position_embeddings"), rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    keep = ((old_context / wavelength - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = keep * plain + (1 - keep) * plain / factor
    return scaled


def load_tensors(path: Path, *, tied: bool) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the shards its index names."""
    index = path / "model.safetensors.index.json"
    single = path / "model.safetensors"
    if index.exists():
        shards = Fields(index, read_object(index).get("weight_map", dict))
        files = [path / name for name in sorted({shards.get(key, str) for key in shards})]
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
        except (SafetensorError, OSError) as error:
            raise InvalidModel(f"{file} is broken: {error}") from error
    if tied:
        tensors.pop("lm_head.weight", None)
    return {name: value for name, value in tensors.items() if not name.endswith(RECOMPUTED)}


def text_rules(path: Path, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> TextRules:
    settings = read_object(path / "tokenizer_config.json")
    bos = token_text(settings, "bos_token")
    return TextRules(
        chat_template=chat_template(path / "chat_template.jinja", settings),
        bos_token=bos,
        eos_token=token_text(settings, "eos_token"),
        eos_token_ids=eos_token_ids,
        # What the tokenizer's own post-processor puts before a text.
        add_bos=bool(bos) and tokenizer.encode("").tokens[:1] == [bos],
    )


def chat_template(file: Path, settings: Fields) -> str:
    """The one in a file of its own, or in tokenizer_config.json: a text, or several by name."""
    if file.exists():
        try:
            return read_bytes(file).decode()
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{file} is not UTF-8: {error}") from error
    if not settings.is_list("chat_template"):
        return settings.get("chat_template", str, "")
    named = [Fields(settings.source, each) for each in settings.items("chat_template", dict)]
    templates = {each.get("name", str): each.get("template", str) for each in named}
    return templates.get("default", "")


def token_text(settings: Fields, key: str) -> str:
    """A token in tokenizer_config.json: a text, an object with its `content`, or null."""
    if settings.is_object(key):
        return Fields(settings.source, settings.get(key, dict)).get("content", str)
    return settings.get(key, str, "")
