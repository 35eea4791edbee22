"""Where an answer ends, and which text may leave before that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.prefixlb.v1.inference_pb2 import FinishReason
from replica.output import Addition, Output, StopTexts
from replica.sampling import Sampling
from tests.tiny_model import EOS, tiny_model

UNSPECIFIED = FinishReason.FINISH_REASON_UNSPECIFIED
STOP = FinishReason.FINISH_REASON_STOP
LENGTH = FinishReason.FINISH_REASON_LENGTH

CODEC = tiny_model()[1]


def answer(token_ids: list[int], **changes: object) -> list[Addition]:
    """What each token gives, up to the end of the answer."""
    values = {
        "max_tokens": 100,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "stop_texts": (),
        "stop_token_ids": frozenset({EOS}),
        **changes,
    }
    output = Output(Sampling(**values), CODEC.detokenizer())  # type: ignore[arg-type]
    additions = []
    for token_id in token_ids:
        additions.append(output.push(token_id))
        if additions[-1].finish_reason != UNSPECIFIED:
            break
    return additions


def text_of(additions: list[Addition]) -> str:
    return "".join(addition.text for addition in additions)


def naive(text: str, stops: list[str]) -> str:
    """`text` up to the stop that is complete first; of several at one place, the longest."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))]
    return text


STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(parts=st.lists(st.text("abc", max_size=4), max_size=12), stops=STOPS)
def test_an_answer_ends_before_the_stop_text_that_is_complete_first(
    parts: list[str], stops: list[str]
) -> None:
    stopper = StopTexts(stops)
    shown = ""
    for part in parts:
        shown += stopper.push(part)
        if stopper.found:
            break
    assert shown + stopper.finish() == naive("".join(parts), stops)


@given(text=st.text("abc", max_size=30), stops=STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_text(text: str, stops: list[str]) -> None:
    stopper = StopTexts(stops)
    shown = ""
    for place, character in enumerate(text):
        shown += stopper.push(character)
        if stopper.found:
            return
        held = text[len(shown) : place + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_the_end_token_is_no_part_of_the_answer() -> None:
    additions = answer([*CODEC.encode("hi"), EOS, 7])
    assert additions[-1] == Addition("", STOP, is_stop_token=True)
    assert text_of(additions) == "hi"


def test_max_tokens_ends_the_answer_with_all_its_text() -> None:
    additions = answer(CODEC.encode("abcdef"), max_tokens=4, stop_texts=("dX",))
    assert [addition.finish_reason for addition in additions] == [UNSPECIFIED] * 3 + [LENGTH]
    assert text_of(additions) == "abcd"


def test_a_stop_text_across_tokens_is_cut_out() -> None:
    additions = answer(CODEC.encode("say the end"), stop_texts=("y the",))
    assert additions[-1].finish_reason == STOP
    assert not additions[-1].is_stop_token
    assert text_of(additions) == "sa"


def test_the_last_allowed_token_may_still_complete_a_stop_text() -> None:
    additions = answer(CODEC.encode("abc"), max_tokens=3, stop_texts=("bc",))
    assert (text_of(additions), additions[-1].finish_reason) == ("a", STOP)


@pytest.mark.parametrize(("stops", "text"), [((), "a\ufffd"), (("\ufffd",), "a")])
def test_an_unfinished_character_ends_as_a_replacement(stops: tuple[str, ...], text: str) -> None:
    ids = CODEC.encode("a日")[:3]
    additions = answer(ids, max_tokens=3, stop_texts=stops)
    assert text_of(additions) == text
    assert additions[-1].finish_reason == (STOP if stops else LENGTH)
