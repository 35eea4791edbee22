"""Hugging Face directories, as transformers writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from proto.errors import InvalidModel
from replica.models.huggingface import read_directory
from replica.models.load import load_model
from tests.runner import Run, Runner
from tests.tiny_model import CONFIG, EOS, SPECIAL, tiny_model, tokenizer, write_tiny_model

CPU = torch.device("cpu")
PROMPT = [*range(30, 90)]

SHAPE: dict[str, Any] = {
    "vocab_size": CONFIG.vocab_size,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "eos_token_id": EOS,
    "initializer_range": 0.3,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, **changes}))


def qwen2(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, **changes}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # they begin as zeros, which would show nothing
            torch.nn.init.normal_(parameter)
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> None:
    model.save_pretrained(directory, **options)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), bos_token=SPECIAL[0], eos_token=SPECIAL[EOS]
    ).save_pretrained(directory)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (llama(tie_word_embeddings=True), {}),
        (llama(tie_word_embeddings=False, head_dim=16), {}),
        (llama(rope_parameters=LLAMA3), {}),
        (llama(num_key_value_heads=6), {"max_shard_size": "40KB"}),
        (qwen2(tie_word_embeddings=True), {}),
    ],
    ids=["tied", "untied", "llama3", "sharded", "qwen2"],
)
def test_logits_equal_those_of_the_model_that_was_saved(
    tmp_path: Path, model: PreTrainedModel, options: dict[str, Any]
) -> None:
    save(model, tmp_path, **options)
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(options)
    loaded = load_model(tmp_path, CPU)
    ours = Runner(loaded.model, num_slots=64).forward((Run(), PROMPT, True))
    with torch.inference_mode():
        expected = model.eval()(input_ids=torch.tensor([PROMPT])).logits[0, -1:]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_the_tiny_model_written_and_read_is_the_tiny_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    loaded = load_model(tmp_path / "tiny", CPU)
    model, codec = tiny_model()
    assert loaded.model.config == model.config
    assert loaded.codec.digest() == codec.digest()
    ours = Runner(loaded.model, num_slots=64).forward((Run(), PROMPT, True))
    expected = Runner(model, num_slots=64).forward((Run(), PROMPT, True))
    # Equal but for rounding: a kernel may sum in another order what lies at another address.
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path)
    return tmp_path


def change(path: Path, **values: Any) -> None:
    """Set values of a JSON file; None drops one."""
    merged = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.write_text(json.dumps({name: v for name, v in merged.items() if v is not None}))


def test_end_tokens_come_from_the_config_and_the_generation_config(directory: Path) -> None:
    change(directory / "generation_config.json", eos_token_id=[0, EOS])
    checkpoint = read_directory(directory)
    assert checkpoint.config.eos_token_ids == (0, EOS)
    assert checkpoint.rules.eos_token_ids == [0, EOS]


def test_the_begin_token_is_added_where_the_tokenizer_adds_it(directory: Path) -> None:
    assert not read_directory(directory).rules.add_bos
    change(
        directory / "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]]}},
        },
    )
    assert load_model(directory, CPU).codec.encode("a")[0] == 0


@pytest.mark.parametrize(
    ("settings", "file", "expected"),
    [
        ({"chat_template": "plain"}, None, "plain"),
        ({"chat_template": None}, None, ""),
        ({"chat_template": "plain"}, "from the file", "from the file"),
        (
            {
                "chat_template": [
                    {"name": "tools", "template": "t"},
                    {"name": "default", "template": "d"},
                ]
            },
            None,
            "d",
        ),
    ],
)
def test_a_chat_template_is_found_where_it_is_kept(
    directory: Path, settings: dict[str, Any], file: str | None, expected: str
) -> None:
    change(directory / "tokenizer_config.json", **settings)
    if file is not None:
        (directory / "chat_template.jinja").write_text(file)
    assert read_directory(directory).rules.chat_template == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            r"\['GemmaForCausalLM'\], expected first one of",
        ),
        ({"architectures": None}, r"config.json lacks 'architectures', a list"),
        ({"hidden_act": "gelu"}, "config.json: hidden_act is 'gelu', expected 'silu'"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        (
            {"rope_scaling": {"type": "yarn"}},
            "json: type is 'yarn', expected 'default' or",
        ),
        ({"rope_parameters": {"rope_type": "llama3"}}, "lacks 'original_max_position_embeddings'"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
            r"config.json: sliding_window is 4096, expected null",
        ),
        ({"hidden_size": -1}, "config.json: hidden_size is -1, expected at least 1"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two', expected a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads is True, expected a whole number"),
        ({"rms_norm_eps": "x"}, "config.json: rms_norm_eps is 'x', expected a number above 0"),
        ({"rms_norm_eps": None}, "config.json lacks 'rms_norm_eps', a number"),
        ({"rope_theta": "x"}, "config.json: rope_theta is 'x', expected a number above 0"),
        ({"rope_scaling": "x"}, "config.json: rope_scaling is 'x', expected an object"),
        ({"architectures": 5}, "config.json: architectures is 5, expected a list"),
        ({"eos_token_id": "a"}, "config.json: eos_token_id is 'a', expected a whole number"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id is .*, expected a list of which each item is"),
        ({"eos_token_id": 99999}, r"eos_token_id is \[99999\], expected ids of the vocabulary of"),
        ({"eos_token_id": -1}, r"eos_token_id is \[-1\], expected ids of the vocabulary of 265"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0, expected at least 1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ],
)
def test_what_cannot_be_run_is_named(directory: Path, values: dict[str, Any], message: str) -> None:
    change(directory / "config.json", **values)
    with pytest.raises(InvalidModel, match=message):
        load_model(directory, CPU)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_missing_or_broken_file_is_named(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(b"{broken")
    with pytest.raises(InvalidModel, match=name):
        load_model(directory, CPU)
    path.unlink()
    with pytest.raises(InvalidModel, match=name):
        load_model(directory, CPU)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"[]", r"config.json is \[\], expected an object"),
        ("config.json", b"\xff\xfe\x00", "config.json is not JSON"),
        ("generation_config.json", b"[1]", r"generation_config.json is \[1\], expected an object"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config.json is \[\], expected an object"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is 5, expected a text"),
        ("tokenizer_config.json", b'{"chat_template": [{"a": 1}]}', "lacks 'name', a text"),
        ("tokenizer_config.json", b'{"bos_token": {"x": 1}}', "lacks 'content', a text"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token is 5, expected a text"),
        ("tokenizer_config.json", b'{"chat_template": "{% for"}', "template cannot be compiled"),
        ("chat_template.jinja", b"\xff\xff", "chat_template.jinja is not UTF-8"),
        ("model.safetensors.index.json", b"[]", r"index.json is \[\], expected an object"),
        ("model.safetensors.index.json", b"{}", "index.json lacks 'weight_map', an object"),
        ("model.safetensors.index.json", b'{"weight_map": [1]}', "expected an object"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 3}}', "a is 3, expected a text"),
        ("model.safetensors", b"", "model.safetensors is broken"),
        ("tokenizer.json", b"{", "tokenizer.json cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    directory: Path, name: str, content: bytes, message: str
) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(InvalidModel, match=message) as caught:
        load_model(directory, CPU)
    assert str(caught.value).startswith(str(directory))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_in_place_of_a_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    (directory / name).mkdir()
    with pytest.raises(InvalidModel, match=name):
        load_model(directory, CPU)


def test_weights_that_are_no_floating_numbers_are_named(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int64)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(InvalidModel, match=r"norm\.weight is of torch.int64, expected a floating"):
        load_model(directory, CPU)


def test_a_missing_shard_is_named(directory: Path) -> None:
    change(directory / "model.safetensors.index.json", weight_map={"a": "model-1.safetensors"})
    with pytest.raises(InvalidModel, match=r"model-1\.safetensors is missing"):
        load_model(directory, CPU)
