"""The bridge between tree and pool, call by call."""

import numpy as np
import pytest

from radix_rs import TreeError
from replica.cache import Cache, CacheError
from replica.sequence import Sequence
from tests.engine_rig import EngineRig


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(np.array(tokens, dtype=np.uint32))


def compute(cache: Cache, made: Sequence, until: int | None = None) -> None:
    """As the engine does with a chunk that ends at `until`."""
    until = made.length if until is None else until
    assert cache.allocate(made, until)
    made.computed = until
    cache.checkpoint(made)


def test_two_who_compute_the_same_end_up_on_the_trees_slots() -> None:
    rig = EngineRig(slots=64)
    first, second = sequence([1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 9])
    for each in (first, second):
        rig.cache.acquire(each)
        assert each.computed == 0
        assert rig.cache.allocate(each, each.length)
        each.computed = each.length
    rig.cache.checkpoint(first)
    rig.cache.checkpoint(second)
    assert second.slots[:4].tolist() == first.slots[:4].tolist()
    assert second.slots[4] != first.slots[4]
    assert rig.pool.num_free == 64 - 6
    rig.cache.check([first, second])
    for each in (first, second):
        rig.cache.release(each)
    rig.cache.check([])
    assert rig.tree.stats().locks == 0


def test_a_tail_below_a_page_stays_its_owners_and_goes_with_him() -> None:
    rig = EngineRig(slots=64, page_size=4, block_size=4)
    made = sequence(list(range(10)))
    rig.cache.acquire(made)
    compute(rig.cache, made)
    assert (made.owned_from, made.allocated) == (8, 10)
    rig.cache.check([made])
    rig.cache.release(made)
    assert (rig.pool.num_free, rig.tree.stats().evictable) == (56, 8)


def test_acquire_takes_over_what_another_has_computed_since() -> None:
    rig = EngineRig(slots=64, page_size=4, block_size=4)
    prompt = list(range(20))
    slow, fast = sequence(prompt), sequence(prompt)
    rig.cache.acquire(slow)
    compute(rig.cache, slow, until=8)
    rig.cache.acquire(fast)
    assert fast.computed == 8
    compute(rig.cache, fast)
    rig.cache.acquire(slow)
    assert slow.computed == slow.allocated == 16
    assert slow.slots.tolist() == fast.slots[:16].tolist()
    rig.cache.check([slow, fast])


def test_an_allocation_that_cannot_be_had_changes_nothing() -> None:
    rig = EngineRig(slots=16)
    held, old = sequence(list(range(8))), sequence(list(range(100, 106)))
    rig.cache.acquire(old)
    compute(rig.cache, old)
    rig.cache.release(old)
    rig.cache.acquire(held)
    compute(rig.cache, held)
    asking = sequence(list(range(200, 210)))
    rig.cache.acquire(asking)
    assert not rig.cache.allocate(asking, 9)
    assert rig.tree.stats().evicted_total == 0
    assert rig.cache.allocate(asking, 8)
    assert rig.tree.stats().evicted_total == 6
    rig.cache.check([held, asking])


def test_output_can_be_evicted_without_its_prompt() -> None:
    rig = EngineRig(slots=16)
    made = sequence(list(range(8)))
    for token in (50, 51, 52):
        made.append(token)  # as after a preemption: prompt and output computed in one go
    rig.cache.acquire(made)
    compute(rig.cache, made)
    rig.cache.release(made)
    other = sequence(list(range(100, 106)))
    rig.cache.acquire(other)
    assert rig.cache.allocate(other, 6)
    asked = sequence(list(range(9)))
    rig.cache.look_up(asked)
    assert (asked.cached, asked.uncached) == (8, 1)


def test_flush_is_refused_while_somebody_holds_a_prefix() -> None:
    rig = EngineRig(slots=16)
    made = sequence([1, 2, 3])
    rig.cache.acquire(made)
    compute(rig.cache, made)
    with pytest.raises(TreeError):
        rig.cache.flush()
    rig.cache.release(made)
    assert rig.cache.flush() == 3
    assert rig.pool.num_free == 16


def test_check_finds_a_lost_slot_and_a_lost_lock() -> None:
    rig = EngineRig(slots=16)
    rig.pool.alloc(1)
    with pytest.raises(CacheError, match="15 of 16 slots"):
        rig.cache.check([])
    made = sequence([1, 2, 3])
    rig = EngineRig(slots=16)
    rig.cache.acquire(made)
    compute(rig.cache, made)
    with pytest.raises(CacheError, match="1 locks for 0 holders"):
        rig.cache.check([])
