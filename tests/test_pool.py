"""Slots come and go once each."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidModel
from replica.pool import Pool, PoolError
from replica.slot_ranges import SlotArray, to_ranges, to_slots


def ranges(slots: list[int]) -> SlotArray:
    return to_ranges(np.array(slots, dtype=np.int32))


def make_pool(num_slots: int = 8) -> Pool:
    return Pool(
        num_slots=num_slots,
        num_layers=2,
        num_kv_heads=1,
        head_dim=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_a_fresh_pool_gives_slots_in_order_and_gives_them_again_once_freed() -> None:
    pool = make_pool()
    assert pool.alloc(3).tolist() == [0, 1, 2]
    assert pool.alloc(2).tolist() == [3, 4]
    assert pool.free(ranges([1, 2])) == 2
    assert pool.alloc(2).tolist() == [1, 2]
    assert pool.num_free == 3


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 9), max_size=30))
def test_slots_come_out_of_ranges_as_they_went_in(slots: list[int]) -> None:
    packed = ranges(slots)
    assert to_slots(packed).tolist() == slots
    follow = [after == before + 1 for before, after in itertools.pairwise(slots)]
    assert len(packed) == bool(slots) + follow.count(False), "none can be joined"


def test_more_memory_than_there_is_says_how_much_was_wanted() -> None:
    with pytest.raises(InvalidModel, match=r"99999999999999 slots of 64 bytes on cpu are .* GiB"):
        Pool(
            num_slots=99999999999999,
            num_layers=2,
            num_kv_heads=2,
            head_dim=2,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )


def test_more_slots_than_are_free_are_refused() -> None:
    pool = make_pool()
    with pytest.raises(PoolError, match="need 9 slots, 8 free"):
        pool.alloc(9)
    assert pool.num_free == 8


def test_a_range_of_no_slots_is_refused() -> None:
    pool = make_pool()
    pool.alloc(3)
    with pytest.raises(PoolError, match="or a range of none"):
        pool.free(np.array([[1, 0], [2, 1]], dtype=np.int32))


@pytest.mark.parametrize("slots", [[5], [0, 0], [0, 1, 0], [1, 2, 0, 1], [-1], [8]])
def test_slots_freed_twice_or_foreign_are_refused_and_change_nothing(slots: list[int]) -> None:
    pool = make_pool()
    pool.alloc(3)
    with pytest.raises(PoolError):
        pool.free(ranges(slots))
    assert pool.num_free == 5
    pool.free(ranges([0, 1, 2]))
    assert sorted(pool.alloc(8).tolist()) == list(range(8))
