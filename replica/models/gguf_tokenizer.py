"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from proto.errors import InvalidModel
from proto.prefixlb.v1.replica_pb2 import TextRules

CONTROL, USER_DEFINED = 3, 4
"""Token types (llama_token_type) matched in text before the merges."""

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
"""Texts of control tokens that end an answer whatever the file calls its end of sequence."""


def tokenizer_json(metadata: Mapping[str, Any]) -> bytes:
    """Raises InvalidModel for another kind than byte-level BPE with the smollm pre-tokenizer."""
    if (kind := metadata["tokenizer.ggml.model"]) != "gpt2":
        raise InvalidModel(f"GGUF tokenizer {kind!r} is not supported, expected 'gpt2' (BPE)")
    if (split := metadata.get("tokenizer.ggml.pre", "default")) != "smollm":
        raise InvalidModel(f"GGUF pre-tokenizer {split!r} is not supported, expected 'smollm'")
    tokens = metadata["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(tokens)},
            merges=[pair(merge) for merge in metadata["tokenizer.ggml.merges"]],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, special=False, normalized=False)
            for text, kind in zip(tokens, types, strict=True)
            if kind == USER_DEFINED
        ]
    )
    return tokenizer.to_str().encode()


def text_rules(metadata: Mapping[str, Any]) -> TextRules:
    tokens = metadata["tokenizer.ggml.tokens"]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return TextRules(
        chat_template=metadata.get("tokenizer.chat_template", ""),
        bos_token="" if bos is None else tokens[bos],
        eos_token=tokens[metadata["tokenizer.ggml.eos_token_id"]],
        eos_token_ids=eos_token_ids(metadata),
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", False),
    )


def eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end an answer: the declared ones, and control tokens known to end a turn."""
    declared = {
        metadata["tokenizer.ggml.eos_token_id"],
        metadata.get("tokenizer.ggml.eot_token_id"),
    }
    types = metadata["tokenizer.ggml.token_type"]
    known = {
        index
        for index, text in enumerate(metadata["tokenizer.ggml.tokens"])
        if types[index] == CONTROL and text in END_OF_TURN
    }
    return (*sorted((declared | known) - {None}),)


def pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
