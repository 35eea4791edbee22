"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from proto.errors import InvalidModel
from proto.prefixlb.v1.replica_pb2 import TextRules
from replica.models.fields import Fields

EOS = "tokenizer.ggml.eos_token_id"
CONTROL, USER_DEFINED = 3, 4
"""Token types (llama_token_type) matched in text before the merges."""

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
"""Texts of control tokens that end an answer whatever the file calls its end of sequence."""


@dataclass(frozen=True)
class Vocabulary:
    """What each token id stands for."""

    tokens: Sequence[str]
    types: Sequence[int]
    """As many."""

    @classmethod
    def of(cls, metadata: Fields) -> "Vocabulary":
        """Raises InvalidModel if there is none, or no type for each token."""
        tokens = metadata.items("tokenizer.ggml.tokens", str)
        types = metadata.items("tokenizer.ggml.token_type", int)
        if len(types) != len(tokens):
            raise metadata.wrong("tokenizer.ggml.token_type", f"a type for each of {len(tokens)}")
        return cls(tokens, types)

    def of_type(self, wanted: int) -> list[str]:
        return [text for text, kind in zip(self.tokens, self.types, strict=True) if kind == wanted]

    def token_id(self, metadata: Fields, key: str) -> int | None:
        """The token that `key` names, if it does."""
        if key not in metadata:
            return None
        if not 0 <= (token_id := metadata.get(key, int)) < len(self.tokens):
            raise metadata.wrong(key, f"one of {len(self.tokens)} tokens")
        return token_id


def tokenizer_json(metadata: Fields, vocabulary: Vocabulary) -> bytes:
    """Raises InvalidModel for another kind than byte-level BPE with the smollm pre-tokenizer."""
    if metadata.get("tokenizer.ggml.model", str) != "gpt2":
        raise metadata.wrong("tokenizer.ggml.model", "'gpt2' (BPE)")
    if metadata.get("tokenizer.ggml.pre", str) != "smollm":
        raise metadata.wrong("tokenizer.ggml.pre", "'smollm'")
    try:
        bpe = models.BPE(
            vocab={text: index for index, text in enumerate(vocabulary.tokens)},
            merges=[pair(merge) for merge in metadata.items("tokenizer.ggml.merges", str)],
        )
    except InvalidModel:
        raise
    except Exception as error:  # of no narrower class
        raise InvalidModel(f"{metadata.source}: the tokenizer is broken: {error}") from error
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in vocabulary.of_type(CONTROL)]
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, special=False, normalized=False)
            for text in vocabulary.of_type(USER_DEFINED)
        ]
    )
    return tokenizer.to_str().encode()


def text_rules(metadata: Fields, vocabulary: Vocabulary) -> TextRules:
    bos = vocabulary.token_id(metadata, "tokenizer.ggml.bos_token_id")
    eos = vocabulary.token_id(metadata, EOS)
    return TextRules(
        chat_template=metadata.get("tokenizer.chat_template", str, ""),
        bos_token="" if bos is None else vocabulary.tokens[bos],
        eos_token="" if eos is None else vocabulary.tokens[eos],
        eos_token_ids=eos_token_ids(metadata, vocabulary),
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", bool, False),
    )


def eos_token_ids(metadata: Fields, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Tokens that end an answer: the declared ones, and control tokens known to end a turn."""
    if EOS not in metadata:
        raise InvalidModel(f"{metadata.source} lacks {EOS!r}, a whole number")
    declared = {
        vocabulary.token_id(metadata, EOS),
        vocabulary.token_id(metadata, "tokenizer.ggml.eot_token_id"),
    }
    known = {
        index
        for index, text in enumerate(vocabulary.tokens)
        if vocabulary.types[index] == CONTROL and text in END_OF_TURN
    }
    return (*sorted(known.union(each for each in declared if each is not None)),)


def pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
