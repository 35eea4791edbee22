"""Which prompt is computed next, who is let in, and who gives way."""

import pytest

from replica.request import Request, RequestState
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
