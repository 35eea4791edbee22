"""The compiled tokenising against the readable one, token for token."""

from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

import radix_rs
from proto.errors import InvalidRequest
from proto.prefixlb.v1.inference_pb2 import ChatMessage
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import TextCodec
from tests.tiny_model import CHAT_TEMPLATE, SPECIAL, tokenizer

TOKENIZER_JSON = tokenizer().to_str().encode()

WITH_SYSTEM = """
{%- if messages[0]['role'] == 'system' -%}
    {%- set system, rest = messages[0].content.strip(), messages[1:] -%}
{%- else -%}
    {%- set system, rest = 'Be brief.', messages -%}
{%- endif -%}
{{ bos_token }}{{ system }}
{% for message in rest %}
    {% if message.role not in ['user', 'assistant'] %}
        {{ raise_exception('no role ' ~ message.role) }}
    {% elif loop.index0 % 2 != (message.role == 'assistant') | int %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {{- '<|im_start|>' + message.role.upper() + '\\n' }}
    {%- generation %}{{ message['content'] | trim }}{% endgeneration -%}
    {{ eos_token + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
AS_JSON = """
{%- for message in messages %}
{{ loop.index }}/{{ messages | length }}: {{ message | tojson }} {{ message.content is defined }}
{%- if not loop.last %}, {% endif %}
{%- endfor %} {{ none }}"""
TEMPLATES = [CHAT_TEMPLATE, WITH_SYSTEM, AS_JSON]

texts = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from([*SPECIAL, "<|im", "_start|>", " ", "\n", "é", "日", "\U000f0000", "a"])
    ).map("".join),
).flatmap(lambda text: st.sampled_from([text, text * 9]))  # long ones are remembered
chats = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]) | texts, texts))


def both(template: str, *, add_bos: bool = False) -> tuple[TextCodec, radix_rs.TextCodec]:
    rules = TextRules(
        chat_template=template, bos_token=SPECIAL[0], eos_token=SPECIAL[2], add_bos=add_bos
    )
    return TextCodec(TOKENIZER_JSON, rules), radix_rs.TextCodec(
        TOKENIZER_JSON,
        chat_template=template,
        bos_token=rules.bos_token,
        eos_token=rules.eos_token,
        add_bos=add_bos,
    )


WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How many models part words: the two bring different engines for it."""


def parts_words() -> bytes:
    made = tokenizer()
    made.pre_tokenizer = Sequence(
        [Split(WORDS, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    text = ["It's 12345 words,\n\nl'été — 日本語", "don't   they?!\r\n\tYES 42\u00a0%"]
    made.train_from_iterator(text * 2, BpeTrainer(vocab_size=400, special_tokens=[*SPECIAL]))
    return made.to_str().encode()


@given(text=texts | st.text(alphabet="aé'sLT 12\n\r\t\u00a0\u3000日.,!"))
@settings(deadline=None, max_examples=300)
def test_words_are_parted_alike(text: str) -> None:
    readable, compiled = PARTS_WORDS
    assert array("I", compiled.encode(text)).tolist() == readable.encode(text)


BOTH = [both(template) for template in TEMPLATES]
PARTS_WORDS = (TextCodec(WORDED := parts_words(), TextRules()), radix_rs.TextCodec(WORDED))


@given(text=texts, add_bos=st.booleans())
@settings(deadline=None, max_examples=200)
def test_a_text_has_the_same_tokens_in_both(text: str, add_bos: bool) -> None:
    readable, compiled = both("", add_bos=add_bos)
    assert array("I", compiled.encode(text)).tolist() == readable.encode(text)


@pytest.mark.parametrize("made", BOTH, ids=["chatml", "with system", "as json"])
@given(chat=chats)
@example(chat=[("system", "\x1f a \x1c"), ("user", "\x1d")])  # blanks in Python alone
@settings(deadline=None, max_examples=300)
def test_a_chat_has_the_same_tokens_in_both_or_is_refused_by_both(
    made: tuple[TextCodec, radix_rs.TextCodec], chat: list[tuple[str, str]]
) -> None:
    readable, compiled = made
    try:
        expected = readable.encode_chat([ChatMessage(role=r, content=c) for r, c in chat])
    except InvalidRequest:
        with pytest.raises(radix_rs.TextError):
            compiled.encode_chat(chat)
    else:
        for _ in "first", "again":
            assert array("I", compiled.encode_chat(chat)).tolist() == expected


def test_what_a_template_says_when_it_refuses_is_told_alike() -> None:
    readable, compiled = BOTH[1]
    with pytest.raises(InvalidRequest) as slow:
        readable.encode_chat([ChatMessage(role="user"), ChatMessage(role="user")])
    with pytest.raises(radix_rs.TextError) as fast:
        compiled.encode_chat([("user", ""), ("user", "")])
    assert str(slow.value) == str(fast.value)


@pytest.mark.parametrize(
    ("tokenizer_json", "rules", "message"),
    [
        (b"{}", {}, "tokenizer.json cannot be read"),
        (TOKENIZER_JSON, {"chat_template": "{% if %}"}, "chat template cannot be compiled"),
        (TOKENIZER_JSON, {"bos_token": "<none>", "add_bos": True}, '"<none>" is not in the vocab'),
    ],
)
def test_what_cannot_be_used_is_said(
    tokenizer_json: bytes, rules: dict[str, object], message: str
) -> None:
    with pytest.raises(radix_rs.TextError, match=message):
        radix_rs.TextCodec(tokenizer_json, **rules)  # type: ignore[arg-type]
