"""Which prompt is computed next, who is let in, and who gives way."""

import pytest

from replica.request import Request, RequestState
from replica.sequence import Sequence
from tests.engine_rig import EngineRig
from tests.fakes import FakeModel
from tests.test_engine import numbers


def segment_sizes(rig: EngineRig) -> list[list[int]]:
    """New tokens of each segment, batch by batch."""
    assert isinstance(rig.model, FakeModel)
    return [[segment.num_new for segment in batch.segments] for batch in rig.model.batches]


def finished(rig: EngineRig, requests: dict[str, Request]) -> list[str]:
    """Names in the order in which first tokens came."""
    order: list[str] = []
    while len(order) < len(requests):
        rig.step()
        order += [
            name
            for name, request in requests.items()
            if rig.answers[request].tokens and name not in order
        ]
    return order


def test_the_prompt_with_least_left_to_compute_goes_first() -> None:
    rig = EngineRig(chunk_size=16)
    rig.generate(numbers(100, seed=1), 1)
    requests = {
        "long": rig.submit(numbers(200, seed=2), 1),
        "short": rig.submit(numbers(40, seed=3), 1),
        "cached": rig.submit([*numbers(100, seed=1), 1, 2], 1),
    }
    assert finished(rig, requests) == ["cached", "short", "long"]


def test_a_short_prompt_overtakes_a_long_one_half_way_through() -> None:
    rig = EngineRig(chunk_size=16)
    requests = {"long": rig.submit(numbers(200, seed=2), 1)}
    rig.step()
    rig.step()
    requests["short"] = rig.submit(numbers(30, seed=3), 1)
    assert finished(rig, requests) == ["short", "long"]


def test_a_long_prompt_does_not_starve_behind_a_stream_of_short_ones() -> None:
    rig = EngineRig(chunk_size=16)
    long = rig.submit(numbers(160, seed=0), 1)
    steps = 0
    while not rig.answers[long].tokens:
        rig.submit(numbers(16, seed=1000 + steps), 1)
        rig.step()
        steps += 1
    # Each step forgives it a tenth of a chunk: after 90 it counts no more than the others.
    assert 90 < steps < 110


def test_a_higher_priority_goes_before_a_shorter_prompt() -> None:
    rig = EngineRig(chunk_size=16)
    requests = {
        "short": rig.submit(numbers(20, seed=1), 1),
        "urgent": rig.submit(numbers(100, seed=2), 1, priority=1),
    }
    assert finished(rig, requests) == ["urgent", "short"]


def test_decodes_ride_along_with_prompt_chunks() -> None:
    rig = EngineRig(chunk_size=16)
    talking = rig.submit(numbers(3, seed=1), 20)
    rig.step()
    rig.submit(numbers(100, seed=2), 1)
    for step in range(2, 6):
        rig.step()
        assert len(rig.answers[talking].tokens) == step
    assert segment_sizes(rig)[-1] == [1, 16]


def test_chunks_end_on_page_boundaries() -> None:
    rig = EngineRig(chunk_size=24, page_size=16)
    rig.submit(numbers(3, seed=1), 1)
    rig.submit(numbers(100, seed=2), 1)
    rig.run()
    assert segment_sizes(rig) == [[3, 16], [16], [16], [16], [16], [20]]


def test_no_more_than_max_running_are_let_in() -> None:
    rig = EngineRig(max_running=2)
    requests = [rig.submit(numbers(5, seed), 10) for seed in range(4)]
    rig.step()
    rig.step()
    states = [request.state for request in requests]
    assert states == [RequestState.RUNNING] * 2 + [RequestState.WAITING] * 2


def test_who_does_not_fit_waits_without_a_lock_and_holds_up_those_behind() -> None:
    rig = EngineRig(slots=200, chunk_size=256)
    rig.submit(numbers(100, seed=1), 60)
    rig.step()
    big = rig.submit(numbers(90, seed=2), 5, priority=1)
    small = rig.submit(numbers(4, seed=3), 5)
    rig.step()
    assert big.state is small.state is RequestState.WAITING
    assert rig.tree.stats().locks == 1
    rig.run()
    assert len(rig.answers[big].tokens) == len(rig.answers[small].tokens) == 5


def test_the_youngest_of_the_lowest_priority_gives_way() -> None:
    rig = EngineRig(slots=240, chunk_size=256)
    requests = []
    for priority in (0, 1, 0):
        requests.append(rig.submit(numbers(5, seed=priority), 100, priority=priority))
        rig.step()
    while not rig.scheduler.preemptions:
        rig.step()
    assert [request.state for request in requests] == [
        RequestState.RUNNING,
        RequestState.RUNNING,
        RequestState.WAITING,
    ]


def test_the_load_counts_what_is_neither_cached_nor_computed_by_size() -> None:
    rig = EngineRig(chunk_size=16, max_running=2)
    rig.generate(numbers(50, seed=1), 1)
    rig.submit([*numbers(50, seed=1), 1, 2, 3], 8)
    rig.step()
    rig.submit(numbers(100, seed=2), 8)
    rig.submit(numbers(40, seed=3), 8)
    rig.submit([*numbers(50, seed=1), 7], 8)
    rig.step()
    load = rig.scheduler.load()
    assert (load.running, load.waiting) == (2, 2)
    assert load.pending_tokens == 100 + 40
    assert [(each.log2, each.requests, each.tokens) for each in load.classes] == [
        (5, 1, 40),
        (6, 1, 100),
    ]
    assert load.free_slots + load.evictable_slots < load.total_slots == 4096


def test_the_prefill_rate_is_measured_over_steps_with_prompts() -> None:
    rig = EngineRig(chunk_size=16)
    rig.generate(numbers(160, seed=1), 20)
    assert rig.scheduler.prefill_tokens_per_s == pytest.approx(16 / 0.01)


def test_what_a_request_computed_before_it_gave_way_is_not_counted_as_reuse() -> None:
    rig = EngineRig(slots=530, chunk_size=2)
    rig.generate(numbers(20, seed=1), 1)
    for seed in (2, 3, 4):
        rig.submit(numbers(10, seed), 200)
    long = rig.submit([*numbers(20, seed=1), *numbers(220, seed=5)], 1)
    while long.state is RequestState.WAITING:
        rig.step()
    assert long.cached_tokens == 20
    while long.state is RequestState.PREFILL:
        rig.step()
    assert long.state is RequestState.WAITING
    rig.run()
    assert len(rig.answers[long].tokens) == 1
    assert long.cached_tokens == 20


def test_of_three_levels_that_share_each_token_is_computed_once() -> None:
    rig = EngineRig(chunk_size=64)
    first, second, third = (numbers(80, seed=seed) for seed in (1, 2, 3))
    tails = [numbers(10, seed=10 + index) for index in range(5)]
    a = rig.submit(first + tails[0], 1)
    b = rig.submit(first + second + tails[1], 1)
    c = [rig.submit(first + second + third + tail, 1) for tail in tails[2:]]
    rig.run()
    assert rig.metrics.total("prefilled_tokens") == 80 + 80 + 80 + 5 * 10
    assert a.cached_tokens == 0
    assert b.cached_tokens == 80
    assert sorted(each.cached_tokens for each in c) == [160, 240, 240]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("shared", [47, 48, 200])
def test_who_shares_waits_for_whole_pages_only(page_size: int, shared: int) -> None:
    rig = EngineRig(chunk_size=512, page_size=page_size)
    stem = numbers(shared, seed=1)
    for index in range(4):
        rig.submit([*stem, index, *numbers(20, seed=index)], 1)
    rig.run()
    once = shared - shared % page_size
    assert rig.metrics.total("prefilled_tokens") == once + 4 * (shared - once + 21)


def test_prompts_that_share_less_than_is_worth_waiting_for_are_computed_together() -> None:
    rig = EngineRig(chunk_size=512)
    stem = numbers(31, seed=1)
    requests = [rig.submit([*stem, index, *numbers(20, seed=index)], 1) for index in range(4)]
    rig.step()
    assert [each.state for each in requests] == [RequestState.FINISHED] * 4
    assert rig.metrics.total("prefilled_tokens") == 4 * (31 + 21)


def test_equal_prompts_of_two_namespaces_do_not_wait_for_each_other() -> None:
    rig = EngineRig(chunk_size=512)
    requests = [rig.submit(numbers(100, seed=1), 1, cache_salt=salt) for salt in ("", "a", "b")]
    rig.step()
    assert [each.state for each in requests] == [RequestState.FINISHED] * 3


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_when_the_one_that_computes_leaves_the_one_that_waited_goes_on_from_there(
    steps: int,
) -> None:
    rig = EngineRig(chunk_size=32)
    stem = numbers(160, seed=1)
    first, second = (rig.submit([*stem, *numbers(10, seed=seed)], 1) for seed in (2, 3))
    for _ in range(steps):
        rig.step()
    assert (first.state, second.state) == (RequestState.PREFILL, RequestState.WAITING)
    rig.engine.leave(first)
    rig.run()
    assert second.cached_tokens == 32 * steps
    assert rig.metrics.total("prefilled_tokens") == 160 + 10


@pytest.mark.parametrize(("slots", "fits"), [(200, True), (199, False)])
def test_who_fits_to_the_last_slot_is_let_in(slots: int, fits: bool) -> None:
    """Its cached prefix counts as held, not as something to evict for it."""
    rig = EngineRig(slots=slots, chunk_size=256)
    prefix = numbers(50, seed=1)
    rig.generate(prefix, 1)
    # 100 + 9 slots: the tenth token of the answer needs none. Then 50 + 41, 50 of them cached.
    rig.submit(numbers(100, seed=2), 10)
    rig.step()
    asking = rig.submit([*prefix, *numbers(32, seed=3)], 10)
    rig.step()
    assert (asking.state is RequestState.RUNNING) == fits
    rig.run()
    assert len(rig.answers[asking].tokens) == 10
    assert rig.scheduler.preemptions == 0


def test_what_was_computed_of_a_prompt_never_includes_its_last_token() -> None:
    rig = EngineRig()
    prompt = numbers(64, seed=1)
    rig.generate([*prompt, 5], 3)
    asked = rig.submit(prompt, 1)
    rig.run()
    assert asked.cached_tokens == 63
    assert segment_sizes(rig)[-1] == [1]


def test_what_waits_is_looked_up_only_after_the_tree_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = EngineRig(slots=250, chunk_size=256)
    talking = rig.submit(numbers(100, seed=1), 60)
    rig.step()
    waiting = [rig.submit(numbers(90, seed=seed), 20) for seed in range(2, 6)]
    looked_up: list[object] = []
    look_up = rig.cache.look_up

    def counting(sequence: Sequence) -> None:
        looked_up.append(sequence)
        look_up(sequence)

    monkeypatch.setattr(rig.cache, "look_up", counting)
    for _ in range(10):
        rig.step()
    assert talking.state is RequestState.RUNNING
    assert {each.state for each in waiting} == {RequestState.WAITING}
    assert len(looked_up) <= len(waiting)
    rig.run()
    assert len(looked_up) > len(waiting)


def test_without_a_cache_equal_prompts_do_not_wait_and_nothing_is_kept() -> None:
    rig = EngineRig(chunk_size=512, disable_cache=True)
    requests = [rig.submit(numbers(100, seed=1), 1) for _ in range(4)]
    rig.step()
    assert [each.state for each in requests] == [RequestState.FINISHED] * 4
    assert rig.metrics.total("prefilled_tokens") == 400
    assert rig.pool.num_free == rig.pool.num_slots
    assert rig.tree.count_digest() == (0, 0)
