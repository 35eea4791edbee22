"""What a request may carry, at the edge of each limit."""

import pytest

from proto.errors import InvalidRequest
from proto.limits import (
    MAX_CHAT_MESSAGES,
    MAX_NAME_CHARACTERS,
    MAX_PROMPT_TOKENS,
    MAX_TEXT_CHARACTERS,
    check_sizes,
)
from proto.prefixlb.v1.inference_pb2 import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    TokenPrompt,
)


@pytest.mark.parametrize("field", ["model", "extra_key", "cache_salt"])
def test_a_name_may_be_as_long_as_the_limit_and_no_longer(field: str) -> None:
    check_sizes(GenerateRequest(**{field: "x" * MAX_NAME_CHARACTERS}))
    with pytest.raises(InvalidRequest, match=f"{field} has 1025 characters, at most 1024"):
        check_sizes(GenerateRequest(**{field: "x" * (MAX_NAME_CHARACTERS + 1)}))


def test_a_prompt_may_have_as_many_tokens_or_messages_as_the_limit_and_no_more() -> None:
    def tokens(count: int) -> GenerateRequest:
        return GenerateRequest(tokens=TokenPrompt(ids=[1] * count))

    def chat(count: int) -> GenerateRequest:
        return GenerateRequest(chat=ChatPrompt(messages=[ChatMessage()] * count))

    check_sizes(tokens(MAX_PROMPT_TOKENS))
    with pytest.raises(InvalidRequest, match="tokens has 1048577 token ids, at most 1048576"):
        check_sizes(tokens(MAX_PROMPT_TOKENS + 1))
    check_sizes(chat(MAX_CHAT_MESSAGES))
    with pytest.raises(InvalidRequest, match="chat has 16385 messages, at most 16384"):
        check_sizes(chat(MAX_CHAT_MESSAGES + 1))


def test_text_and_chat_may_be_as_long_as_the_limit_and_no_longer() -> None:
    half = ChatMessage(role="user", content="x" * (MAX_TEXT_CHARACTERS // 2 - 4))
    check_sizes(GenerateRequest(text="x" * MAX_TEXT_CHARACTERS))
    check_sizes(GenerateRequest(chat=ChatPrompt(messages=[half, half])))
    with pytest.raises(InvalidRequest, match="text has 1048577 characters"):
        check_sizes(GenerateRequest(text="x" * (MAX_TEXT_CHARACTERS + 1)))
    with pytest.raises(InvalidRequest, match="chat has 1048577 characters"):
        one_more = ChatMessage(content="x")
        check_sizes(GenerateRequest(chat=ChatPrompt(messages=[half, half, one_more])))
