"""Orders of prefill, each against a plain reading of its rule."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from proto.detokenizer import Detokenizer
from proto.prefixlb.v1 import delta_pb2
from proto.prefixlb.v1.inference_pb2 import SamplingParams
from replica.output import Output
from replica.request import Request, RequestState
from replica.sampling import sampling_of
from replica.schedule_policy import AGING, MAX_LPM_WAITING, make_schedule_policy
from replica.sequence import Sequence
from replica.settings import ReplicaSettings
from replica.stream import AnswerStream
from tests.engine_rig import EngineRig
from tests.test_engine import numbers

NOW_S = 1000.0
SAMPLING = sampling_of(SamplingParams(), vocab_size=9, eos_token_ids=(0,), seeds=random.Random(0))


def request(
    length: int, cached: int = 0, node: int = 0, arrived_s: float = 0.0, begun: bool = False
) -> Request:
    sequence = Sequence(np.zeros(length, dtype=np.uint32))
    sequence.cached, sequence.node = cached, node
    made = Request(
        request_id="",
        sequence=sequence,
        sampling=SAMPLING,
        output=Output(SAMPLING, Detokenizer([])),
        stream=AnswerStream(),
        arrived_s=arrived_s,
        deadline_s=None,
    )
    if begun:
        made.move(RequestState.PREFILL)
    return made


def crowd(rng: random.Random, count: int, nodes: list[int] | None = None) -> list[Request]:
    """In no order; no two came at the same time."""
    requests = []
    for arrived_s in rng.sample(range(500, 1000), count):
        length = rng.randrange(2, 60)
        cached = rng.choice([0, rng.randrange(length)])
        node = rng.choice(nodes) if nodes and cached else 0
        requests.append(
            request(length, cached if node or not nodes else 0, node, arrived_s, rng.random() < 0.1)
        )
    return requests


def nothing_above(node: int) -> int | None:
    raise AssertionError("this order does not look at the tree")


def arrange(
    name: str, requests: list[Request], parent: Callable[[int], int | None] = nothing_above
) -> list[Request]:
    return make_schedule_policy(name, parent).arrange(requests, NOW_S, prefill_tokens_per_s=1.0)


def selected(requests: list[Request], better: Callable[[Request, Request], bool]) -> list[Request]:
    """By taking out, again and again, the one that none is better than."""
    left, order = list(requests), []
    while left:
        best = next(a for a in left if not any(better(b, a) for b in left if b is not a))
        left.remove(best)
        order.append(best)
    return order


@pytest.mark.parametrize("seed", range(10))
def test_shortest_takes_the_least_left_to_compute_less_a_tenth_of_what_waiting_cost(
    seed: int,
) -> None:
    requests = crowd(random.Random(seed), 40)

    def better(a: Request, b: Request) -> bool:
        older = b.arrived_s - a.arrived_s
        return a.sequence.uncached - b.sequence.uncached < 0.1 * older

    ties = len({r.sequence.uncached + AGING * r.arrived_s for r in requests}) < len(requests)
    if not ties:
        assert arrange("shortest", requests) == selected(requests, better)


@pytest.mark.parametrize("seed", range(10))
def test_fcfs_is_the_order_of_arrival(seed: int) -> None:
    requests = crowd(random.Random(seed), 40)
    assert arrange("fcfs", requests) == selected(requests, lambda a, b: a.arrived_s < b.arrived_s)


def _before(a: Request, b: Request) -> bool | None:
    """Who has begun goes first, and of these who came first."""
    begun = [each.state is RequestState.PREFILL for each in (a, b)]
    if begun == [False, False]:
        return None
    return a.arrived_s < b.arrived_s if all(begun) else begun[0]


@pytest.mark.parametrize("seed", range(10))
def test_lpm_takes_the_longest_cached_prefix_and_of_equals_the_first_to_come(seed: int) -> None:
    requests = crowd(random.Random(seed), 40)

    def better(a: Request, b: Request) -> bool:
        decided = _before(a, b)
        if decided is not None:
            return decided
        longer = a.sequence.cached - b.sequence.cached
        return longer > 0 or (longer == 0 and a.arrived_s < b.arrived_s)

    assert arrange("lpm", requests) == selected(requests, better)


@pytest.mark.parametrize(("waiting", "by_prefix"), [(MAX_LPM_WAITING, True), (129, False)])
def test_lpm_is_fcfs_when_more_than_128_wait(waiting: int, by_prefix: bool) -> None:
    requests = [request(200, cached=n, node=1, arrived_s=n) for n in range(waiting)]
    begun = [request(200, arrived_s=500.0 + n, begun=True) for n in range(3)]
    expected = requests[::-1] if by_prefix else requests
    assert arrange("lpm", requests + begun) == begun + expected


@pytest.mark.parametrize("seed", range(20))
def test_dfs_weight_goes_to_the_heaviest_child_first_and_to_a_node_after_its_children(
    seed: int,
) -> None:
    rng = random.Random(seed)
    parents: dict[int, int | None] = {1: None, 2: None}  # the roots of two namespaces
    for node in range(3, 20):
        parents[node] = rng.randrange(1, node)
    requests = crowd(rng, 40, nodes=list(range(3, 20)))
    by_arrival = sorted(requests, key=lambda each: each.arrived_s)
    begun = [each for each in by_arrival if each.state is RequestState.PREFILL]
    waiting = [each for each in by_arrival if each.state is RequestState.WAITING]

    def at(node: int | None) -> list[Request]:
        return [each for each in waiting if (each.sequence.node or None) == node]

    def children(node: int | None) -> list[int]:
        return [child for child, above in parents.items() if above == node]

    def weight(node: int) -> int:
        return len(at(node)) + sum(map(weight, children(node)))

    def check(order: list[Request], node: int | None) -> None:
        """`order` is what the rule gives for the subtree, siblings of equal weight in any order."""
        own = at(node)
        split = len(order) - len(own)
        longest_first = sorted(own, key=lambda each: -each.sequence.cached)
        assert order[split:] == longest_first
        below, weights = order[:split], []
        left = {child for child in children(node) if weight(child)}
        while below:
            # The subtree that the next one lies in comes whole before any other.
            child = next(c for c in left if below[0] in subtree(c))
            left.remove(child)
            weights.append(weight(child))
            check(below[: weights[-1]], child)
            below = below[weights[-1] :]
        assert weights == sorted(weights, reverse=True) and not left

    def subtree(node: int) -> list[Request]:
        return at(node) + [each for child in children(node) for each in subtree(child)]

    order = arrange("dfs-weight", requests, parents.__getitem__)
    assert order[: len(begun)] == begun
    check(order[len(begun) :], None)


def test_dfs_weight_asks_for_each_node_once_and_walks_any_depth() -> None:
    asked: list[int] = []

    def parent(node: int) -> int | None:
        asked.append(node)
        return node - 1 if node > 1 else None

    requests = [request(9000, cached=depth, node=depth) for depth in (5000, 4999, 20, 1)]
    assert arrange("dfs-weight", requests[::-1], parent) == requests
    assert sorted(asked) == list(range(1, 5001))


def test_dfs_weight_on_a_real_tree_takes_those_below_one_node_together() -> None:
    rig = EngineRig(schedule_policy="dfs-weight")
    many, few = numbers(40, seed=1), numbers(60, seed=2)
    rig.generate(many, 1)
    rig.generate(few, 1, cache_salt="tenant")
    prompts = [
        ("few", [*few, 1, 2], "tenant"),
        ("many", [*many, 1, 2], ""),
        ("new", numbers(5, seed=3), ""),
        ("many, half", [*many[:20], 3, 4], ""),
        ("many", [*many, 5], ""),
    ]
    names = {rig.submit(ids, 1, cache_salt=salt): name for name, ids, salt in prompts}
    chunks = rig.scheduler.plan(rig.clock()).chunks
    order = [names[chunk.request] for chunk in chunks]
    assert order == ["many", "many", "many, half", "few", "new"]


@pytest.mark.parametrize("policy", ["shortest", "fcfs", "lpm", "dfs-weight"])
def test_every_order_answers_all_right_and_announces_itself(policy: str) -> None:
    rig = EngineRig(schedule_policy=policy, slots=300, chunk_size=32, page_size=4, block_size=4)
    rng = random.Random(7)
    stems = [numbers(rng.randrange(40), seed=seed) for seed in range(3)]
    requests = []
    for index in range(25):
        stem, own = rng.choice(stems), numbers(rng.randrange(1, 20), seed=100 + index)
        priority = rng.choice([0, 1])
        requests.append((stem + own, rig.submit(stem + own, 30, priority=priority)))
        rig.step()
    shortest = rig.scheduler.load().order == delta_pb2.PREFILL_ORDER_SHORTEST
    assert shortest == (policy == "shortest")
    rig.run()
    alone = EngineRig(disable_cache=True)
    for prompt, made in requests:
        assert rig.answers[made].tokens == alone.generate(prompt, 30)


@pytest.mark.parametrize("policy", ["shortest", "fcfs", "lpm", "dfs-weight"])
def test_a_higher_priority_goes_first_in_every_order(policy: str) -> None:
    rig = EngineRig(schedule_policy=policy, chunk_size=16, max_running=1)
    rig.generate(numbers(30, seed=1), 1)
    usual = rig.submit([*numbers(30, seed=1), 1], 1)
    urgent = rig.submit(numbers(100, seed=2), 1, priority=1)
    while not rig.answers[urgent].tokens:
        assert usual.state is RequestState.WAITING
        rig.step()


def test_every_order_that_can_be_set_exists() -> None:
    for name in ReplicaSettings.model_fields["schedule_policy"].annotation.__args__:  # type: ignore[union-attr]
        assert make_schedule_policy(name, nothing_above).arrange([], NOW_S, 1.0) == []


@pytest.mark.parametrize("long", [48, 96])
def test_under_shortest_only_who_comes_in_ten_times_its_own_time_goes_before_a_long_prompt(
    long: int,
) -> None:
    """However many short ones come: here twice as many as can be served."""
    rig = EngineRig(chunk_size=16)
    rig.generate(numbers(16, seed=1), 1)  # so that the speed is known
    starved = rig.submit(numbers(long, seed=0), 1)
    arrived_s = rig.clock()
    late: list[Request] = []
    number = 0
    while not rig.answers[starved].tokens:
        for _ in range(16):
            number += 1
            made = rig.submit([number % 900, number // 900], 1)
            if (rig.clock() - arrived_s) * rig.scheduler.prefill_tokens_per_s > long / AGING:
                late.append(made)
        rig.step()
    assert late
    assert all(each.state is RequestState.WAITING for each in late)
