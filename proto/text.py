"""How text and chats become token ids, and tokens text: the same in router and replica."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from proto.detokenizer import Detokenizer, token_bytes
from proto.errors import InvalidModel, InvalidRequest
from proto.prefixlb.v1.inference_pb2 import ChatMessage, GenerateRequest
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.special_tokens import MARK, SpecialTokens
from proto.token_ids import given_ids, not_empty

PIECES_AT_ONCE = 1024
"""Texts given to the tokenizer in one call. Only calls with a batch release the GIL, and only while
they encode: what they take and return is converted under it.
"""


class TextCodec:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer_json: bytes, rules: TextRules) -> None:
        """`tokenizer_json` as the `tokenizers` package reads it, with a byte-level decoder.

        Raises InvalidModel if the tokenizer or the template cannot be used.
        """
        self.tokenizer_json = tokenizer_json
        self.rules = rules
        self._tokenizer = parse_tokenizer(tokenizer_json)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special = SpecialTokens([token.content for token in added if token.special])
        self._bos = [self._id_of(rules.bos_token)] if rules.add_bos else []
        self._template = compile_template(rules.chat_template) if rules.chat_template else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text prompt, after the begin-of-sequence token if the model wants one.

        Special tokens in it count as such: a text is the whole prompt as its sender wants it.
        """
        return self._bos + self._encode([text])

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of the rendered chat. Raises InvalidRequest as `render_chat` does.

        Only the template's special tokens count as such; in a role or content they are plain text.
        """
        return self._encode(self.render_chat(messages).split(MARK))

    def render_chat(self, messages: Sequence[ChatMessage]) -> str:
        """The chat as the model's template writes it, ready for the assistant's answer.

        A MARK splits what could be a special token of a role or content. Raises InvalidRequest if
        there is no message, no template, or the template refuses the chat.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template; send text or token ids")
        if not messages:
            raise InvalidRequest("the chat has no messages, expected at least 1")
        split = self._special.split
        try:
            return self._template.render(
                messages=[
                    {"role": split(each.role), "content": split(each.content)} for each in messages
                ],
                add_generation_prompt=True,
                bos_token=self.rules.bos_token,
                eos_token=self.rules.eos_token,
            )
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A template may do to values whatever an expression can.
            raise InvalidRequest(f"the model's chat template refused the chat: {error}") from error

    def prompt_ids(self, request: GenerateRequest) -> "array[int]":
        """Token ids (u32) of a request's prompt, whichever form it has.

        Takes seconds for a long text, most of them without the GIL. Raises InvalidRequest if the
        prompt is missing or empty.
        """
        if (given := given_ids(request)) is not None:
            return given
        if request.HasField("chat"):
            return not_empty(array("I", self.encode_chat(request.chat.messages)))
        return not_empty(array("I", self.encode(request.text)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        detokenizer = self.detokenizer()
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer, for one request."""
        return Detokenizer(self._pieces)

    def digest(self) -> bytes:
        """SHA-256 of tokenizer and rules: equal digests give equal token ids for equal requests."""
        sha = hashlib.sha256(len(self.tokenizer_json).to_bytes(8, "little"))
        sha.update(self.tokenizer_json)
        sha.update(self.rules.SerializeToString(deterministic=True))
        return sha.digest()

    @cached_property
    def _pieces(self) -> list[bytes]:
        """What each token adds to the text. A router never asks, so it is made on first use."""
        added = self._tokenizer.get_added_tokens_decoder()
        pieces = []
        for token_id in range(self._tokenizer.get_vocab_size(with_added_tokens=True)):
            token = self._tokenizer.id_to_token(token_id)
            if token is None or (token_id in added and added[token_id].special):
                pieces.append(b"")
            else:
                pieces.append(token_bytes(token))
        return pieces

    def _encode(self, pieces: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for start in range(0, len(pieces), PIECES_AT_ONCE):
            batch = pieces[start : start + PIECES_AT_ONCE]
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids += encoding.ids
        return ids

    def _id_of(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise InvalidModel(f"the begin-of-sequence token {token!r} is not in the vocabulary")
        return int(token_id)


def parse_tokenizer(tokenizer_json: bytes) -> Tokenizer:
    """Raises InvalidModel if this is no tokenizer, or one that is not byte-level."""
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    except ValueError as error:
        raise InvalidModel(f"tokenizer.json cannot be read: {error}") from error
    if not isinstance(tokenizer.decoder, ByteLevel):
        name = type(tokenizer.decoder).__name__
        raise InvalidModel(f"tokenizer decoder {name} is not supported, only ByteLevel")
    return tokenizer


def compile_template(source: str) -> Template:
    """A chat template in the environment Hugging Face templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise InvalidModel(f"the chat template cannot be compiled: {error}") from error


class Generation(Extension):
    """`{% generation %}`, by which templates mark the assistant's words for training: just text."""

    tags = {"generation"}  # noqa: RUF012 - so Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Unlike Jinja's own filter, without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
