"""GGUF files: as llama.cpp writes them, broken, and of kinds we cannot run."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import InvalidModel
from proto.text import TextCodec
from replica.models.gguf import NAMES, read_gguf
from replica.models.gguf_file import GGUFFile
from replica.models.load import load_model
from tests.runner import Run, Runner
from tests.tiny_model import CONFIG, EOS, MERGES, SPECIAL, tiny_checkpoint, tiny_model, tokenizer

CPU = torch.device("cpu")


def write_gguf(path: Path, kind: Kind = Kind.F32, **changes: Any) -> Path:
    """The tiny model as a GGUF file; `changes` set values, with `__` for dots; None drops one."""
    checkpoint = tiny_checkpoint()
    names = {ours: theirs for theirs, ours in NAMES.items()}
    tokens = sorted(tokenizer().get_vocab(), key=tokenizer().get_vocab().get)
    values: dict[str, Any] = {
        "llama.block_count": CONFIG.num_layers,
        "llama.context_length": CONFIG.context_length,
        "llama.embedding_length": CONFIG.hidden_size,
        "llama.feed_forward_length": CONFIG.intermediate_size,
        "llama.attention.head_count": CONFIG.num_heads,
        "llama.attention.head_count_kv": CONFIG.num_kv_heads,
        "llama.rope.freq_base": CONFIG.rope_theta,
        "llama.attention.layer_norm_rms_epsilon": CONFIG.rms_norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.chat_template": checkpoint.rules.chat_template,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    writer = gguf.GGUFWriter(path, values.pop("general.architecture", "llama"))
    for name, value in values.items():
        add(writer, name, value)
    for name, tensor in checkpoint.tensors.items():
        stem, suffix = name.rsplit(".", 1)
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        theirs = f"blk.{layer}.{names[part]}" if part in names else names[stem]
        array = as_llama_cpp(theirs, tensor).numpy()
        # As llama.cpp does, only matrices are quantised.
        own = kind if array.ndim == 2 and array.shape[1] % 32 == 0 else Kind.F32
        writer.add_tensor(f"{theirs}.{suffix}", gguf.quantize(array, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list():
            writer.add_array(name, value)
        case _:
            raise TypeError(f"{name}: {type(value)}")


def as_llama_cpp(name: str, rows: torch.Tensor) -> torch.Tensor:
    """llama.cpp's conversion interleaves the halves of each query and key head (its `permute`)."""
    heads = {"attn_q": CONFIG.num_heads, "attn_k": CONFIG.num_kv_heads}.get(name.split(".")[-1])
    if heads is None:
        return rows
    halves = rows.view(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def test_a_gguf_file_is_the_model_it_was_written_from(tmp_path: Path) -> None:
    loaded = load_model(write_gguf(tmp_path / "tiny.gguf"), CPU)
    model, _ = tiny_model()
    assert loaded.model.config == CONFIG.__class__(
        **{
            **vars(CONFIG),
            "rms_norm_eps": loaded.model.config.rms_norm_eps,
            "eos_token_ids": (0, 2),
        }
    )
    prompt = [*range(40, 70)]
    ours = Runner(loaded.model, num_slots=64).forward((Run(), prompt, True))
    expected = Runner(model, num_slots=64).forward((Run(), prompt, True))
    torch.testing.assert_close(ours, expected)


def test_its_tokenizer_splits_digits_and_keeps_special_tokens(tmp_path: Path) -> None:
    checkpoint = read_gguf(write_gguf(tmp_path / "tiny.gguf", tokenizer__ggml__add_bos_token=True))
    codec = TextCodec(checkpoint.tokenizer_json, checkpoint.rules)
    expected = tiny_model()[1]
    for text in ("the théand\n in 12", "<|im_end|>a", "日本"):
        assert codec.encode(text) == [0, *expected.encode(text)]
    assert checkpoint.rules.eos_token == "<|im_end|>"
    assert checkpoint.rules.eos_token_ids == [0, 2]
    assert checkpoint.rules.chat_template == expected.rules.chat_template


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
)
def test_every_kind_of_tensor_reads_as_the_gguf_package_reads_it(
    tmp_path: Path, kind: Kind
) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "tiny.gguf", kind))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    assert file.tensors.keys() == theirs.keys()
    assert file.tensors["blk.0.attn_q.weight"].kind == kind
    for name, stored in file.tensors.items():
        expected = np.array(gguf.dequantize(theirs[name].data, theirs[name].tensor_type))
        torch.testing.assert_close(stored.load(), torch.from_numpy(expected), rtol=0, atol=0)


def test_every_type_of_value_reads_as_it_was_written(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "values.gguf", "llama")
    written: Mapping[str, Any] = {
        "uint8": 200, "int8": -5, "uint16": 60_000, "int16": -6, "uint32": 2**31, "int32": -7,
        "uint64": 2**63, "int64": -(2**40), "float32": 0.5, "float64": 1e300, "bool": True,
        "string": "naïve", "array": [[1, 2], [3]],
    }  # fmt: skip
    for name, value in written.items():
        getattr(writer, f"add_{name}")(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = GGUFFile.open(tmp_path / "values.gguf").metadata
    assert {name: metadata[name] for name in written} == written


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@given(share=st.floats(0, 0.999))
@settings(deadline=None, max_examples=60)
def test_a_file_cut_short_anywhere_is_an_invalid_model(
    whole_file: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    content = whole_file.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InvalidModel, match=r"cut\.gguf"):
        read_gguf(path)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_header_is_read_or_refused_but_nothing_else(
    whole_file: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(whole_file.read_bytes())
    for _ in range(3):
        place = data.draw(st.integers(4, 6000))
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(InvalidModel):
        GGUFFile.open(path)


def test_a_file_of_another_format_is_an_invalid_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content, message in [
        (b"PK\x03\x04" + bytes(40), "does not begin with 'GGUF'"),
        (b"GGUF\x01\x00\x00\x00" + bytes(40), "GGUF version 1, expected 2 or 3"),
        (b"", "cut short"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InvalidModel, match=message):
            read_gguf(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "gemma2"}, "general.architecture is 'gemma2', expected 'llama'"),
        ({"tokenizer__ggml__model": "llama"}, "ggml.model is 'llama', expected 'gpt2'"),
        ({"tokenizer__ggml__pre": "llama-bpe"}, "ggml.pre is 'llama-bpe', expected 'smollm'"),
        ({"tokenizer__ggml__pre": None}, "lacks 'tokenizer.ggml.pre', a text"),
        ({"llama__block_count": None}, "lacks 'llama.block_count', a whole number"),
        ({"llama__block_count": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"llama__block_count": 1}, "9 tensors that no Llama"),
        ({"llama__rope__scaling__type": "yarn"}, "scaling.type is 'yarn', expected 'none'"),
        ({"llama__rope__dimension_count": 8}, "dimension_count is 8, expected 16"),
        ({"llama__embedding_length": 128}, r"has shape \[265, 64\], expected \[265, 128\]"),
        ({"llama__block_count": "x"}, "block_count is 'x', expected a whole number"),
        ({"llama__context_length": 0}, "context_length is 0, expected at least 1"),
        ({"llama__attention__head_count": 0}, "head_count is 0, expected at least 1"),
        ({"llama__attention__head_count": 3}, r"attn_q.weight has shape \[64, 64\], expected rows"),
        ({"llama__rope__freq_base": "x"}, "freq_base is 'x', expected a number above 0"),
        ({"tokenizer__ggml__tokens": 3}, "tokens is 3, expected a list"),
        ({"tokenizer__ggml__tokens": None}, "lacks 'tokenizer.ggml.tokens', a list"),
        (
            {"tokenizer__ggml__tokens": ["a", "b"]},
            "expected a type for each of 2",
        ),
        ({"tokenizer__ggml__token_type": ["a"]}, "token_type is .*, expected a list of which each"),
        ({"tokenizer__ggml__merges": ["a b", "?? b"]}, "the tokenizer is broken"),
        ({"tokenizer__ggml__merges": [1]}, "merges is .*, expected a list of which each item is"),
        ({"tokenizer__ggml__bos_token_id": 265}, "bos_token_id is 265, expected one of 265 tokens"),
        ({"tokenizer__ggml__eos_token_id": None}, "lacks 'tokenizer.ggml.eos_token_id'"),
        ({"tokenizer__ggml__eos_token_id": "x"}, "eos_token_id is 'x', expected a whole number"),
        ({"tokenizer__chat_template": 3}, "chat_template is 3, expected a text"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(InvalidModel, match=message) as caught:
        load_model(path, CPU)
    assert str(caught.value).startswith(str(path))


def test_a_path_to_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"no model at .*absent\.gguf"):
        load_model(tmp_path / "absent.gguf", CPU)
