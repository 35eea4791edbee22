"""Token ids between the wire and a buffer."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.prefixlb.v1.inference_pb2 import GenerateRequest, TokenPrompt
from proto.token_ids import ids_of, set_ids

U32 = st.integers(0, 2**32 - 1)


@given(ids=st.lists(U32, max_size=300))
def test_ids_are_those_of_the_field_and_back(ids: list[int]) -> None:
    buffer = ids_of(TokenPrompt(ids=ids))
    assert (buffer.itemsize, buffer.tolist()) == (4, ids)
    request = GenerateRequest(text="before")
    set_ids(request.tokens, buffer)
    assert request == GenerateRequest(tokens=TokenPrompt(ids=ids))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 4095, 4096])
def test_every_size_of_the_length_before_the_ids_is_read(length: int) -> None:
    ids = array("I", range(length))
    prompt = TokenPrompt()
    set_ids(prompt, ids)
    assert ids_of(prompt) == ids


def test_ids_one_by_one_and_fields_unknown_here_are_read_as_well() -> None:
    one_by_one = b"\x0d\x07\x00\x00\x00"
    unknown = b"\x12\x02ab\x08\x05"
    prompt = TokenPrompt.FromString(unknown + one_by_one + unknown + one_by_one)
    assert ids_of(prompt).tolist() == list(prompt.ids) == [7, 7]
    assert ids_of(TokenPrompt.FromString(unknown)).tolist() == []
