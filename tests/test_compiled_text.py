"""router/compiled_text.py: the compiled tokenizer serves only where it equals the readable one."""

from array import array

import pytest

from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import TextCodec
from router.compiled_text import compiled
from tests.tiny_model import CHAT_TEMPLATE, SPECIAL, tokenizer

TOKENIZER_JSON = tokenizer().to_str().encode()


def codec(template: str) -> TextCodec:
    rules = TextRules(chat_template=template, bos_token=SPECIAL[0], eos_token=SPECIAL[2])
    return TextCodec(TOKENIZER_JSON, rules)


@pytest.mark.parametrize(
    "template", ["", CHAT_TEMPLATE, CHAT_TEMPLATE + "{{ raise_exception('no') }}"]
)
def test_a_twin_serves(template: str) -> None:
    made = codec(template)
    twin = compiled(made)
    assert twin and array("I", twin.encode("the <|im_end|>")).tolist() == made.encode(
        "the <|im_end|>"
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages }}", "other tokens of a probe"),  # Python's own way to write a list
        ("{{ '%s' % messages[0].role }}", "other tokens of a probe"),
        ("{% trans %}x{% endtrans %}", "cannot be compiled"),
    ],
)
def test_what_is_no_twin_does_not_serve(
    template: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = codec("{{ messages[0].role }}")
    made.rules.chat_template = template
    assert compiled(made) is None
    assert why in caplog.text
