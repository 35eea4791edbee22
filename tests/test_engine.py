"""The engine on a model whose answers can be foretold: right tokens, no slot lost."""

import random

import pytest

from proto.errors import DeadlineExceeded
from proto.prefixlb.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from replica.request import Request, RequestState
from tests.engine_rig import EngineRig
from tests.fakes import VOCAB_SIZE, next_token
from tests.tiny_model import tiny_model


def foretold(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def shape(rig: EngineRig) -> list[str]:
    """The tree, a line a node: its depth as indentation and its length."""
    lines = rig.tree.dump().splitlines()
    return [line.split(" lock=")[0].rstrip() for line in lines]


def numbers(count: int, seed: int, below: int = VOCAB_SIZE) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(below) for _ in range(count)]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 200])
def test_prompts_of_any_length_are_answered_right_and_again_from_the_cache(
    page_size: int, length: int
) -> None:
    rig = EngineRig(page_size=page_size)
    prompt = numbers(length, seed=length)
    for _ in range(2):
        assert rig.generate(prompt, 5) == foretold(prompt, 5)
    second = list(rig.answers)[-1]
    assert second.cached_tokens == (length - 1) // page_size * page_size


def test_two_requests_share_their_system_prompt_and_nothing_else() -> None:
    rig = EngineRig()
    system = numbers(40, seed=1)
    first = rig.submit(system + numbers(10, seed=2), 5)
    rig.run()
    second = rig.submit(system + numbers(10, seed=3), 5)
    rig.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 40)
    assert shape(rig) == ["root", "  40", "    10", "      4", "    10", "      4"]


def test_with_sixteen_token_pages_the_same_requests_reuse_thirty_two() -> None:
    rig = EngineRig(page_size=16)
    system = numbers(40, seed=1)
    rig.generate(system + numbers(10, seed=2), 5)
    rig.generate(system + numbers(10, seed=3), 5)
    assert [request.cached_tokens for request in rig.answers] == [0, 32]


def test_simultaneous_requests_with_one_prefix_compute_it_once() -> None:
    rig = EngineRig(chunk_size=256)
    system = numbers(100, seed=1)
    prompts = [system + numbers(5, seed=10 + index) for index in range(6)]
    requests = [rig.submit(prompt) for prompt in prompts]
    rig.run()
    assert rig.metrics.total("prefilled_tokens") == 100 + 6 * 5
    for request, prompt in zip(requests, prompts, strict=True):
        assert rig.answers[request].tokens == foretold(prompt, 4)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_the_same_in_any_company_under_eviction_and_preemption(
    seed: int, page_size: int
) -> None:
    rng = random.Random(seed)
    rig = EngineRig(
        slots=300, page_size=page_size, block_size=4, chunk_size=rng.choice([8, 32, 128])
    )
    stems = [numbers(rng.randrange(1, 60), seed=100 + index) for index in range(4)]
    asked: list[tuple[Request, list[int], int]] = []
    for _ in range(40):
        stem = rng.choice(stems)
        prompt = stem[: rng.randrange(1, len(stem) + 1)] + numbers(rng.randrange(20), seed)
        max_tokens = rng.randrange(1, 220)
        salt = rng.choice(["", "", "tenant"])
        request = rig.submit(prompt, max_tokens, cache_salt=salt, priority=rng.choice([0, 0, 1]))
        asked.append((request, prompt, max_tokens))
        for _ in range(rng.randrange(6)):
            rig.step()
    rig.run()
    for request, prompt, max_tokens in asked:
        assert rig.answers[request].finish_reason == FINISH_REASON_LENGTH
        assert rig.answers[request].tokens == foretold(prompt, max_tokens)
    assert rig.scheduler.preemptions > 0
    assert rig.tree.stats().evicted_total > 0
    assert rig.tree.stats().locks == 0


def test_a_preempted_request_goes_on_with_the_same_tokens() -> None:
    rig = EngineRig(slots=200, chunk_size=128)
    prompts = [numbers(10, seed=1), numbers(10, seed=2)]
    requests = [rig.submit(prompt, 150) for prompt in prompts]
    rig.run()
    assert rig.scheduler.preemptions > 0
    for request, prompt in zip(requests, prompts, strict=True):
        assert rig.answers[request].tokens == foretold(prompt, 150)


def test_a_request_that_fills_the_pool_to_the_last_slot_is_answered() -> None:
    rig = EngineRig(slots=100)
    rig.generate(numbers(90, seed=1), 5)
    prompt = numbers(95, seed=2)
    assert rig.generate(prompt, 6) == foretold(prompt, 6)


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it() -> None:
    prompt = numbers(10, seed=5)
    expected = foretold(prompt, 6)
    rig = EngineRig()
    request = rig.submit(prompt, 100, stop_token_ids=[expected[4]])
    rig.run()
    assert rig.answers[request].tokens == expected[:4]
    assert rig.answers[request].finish_reason == FINISH_REASON_STOP
    assert rig.tree.stats().tokens == 10 + 4


def test_namespaces_never_share() -> None:
    rig = EngineRig()
    prompt = numbers(50, seed=1)
    spaces = [("", ""), ("lora", ""), ("", "lora"), ("a", "bc"), ("ab", "c")]
    for extra_key, cache_salt in spaces:
        rig.submit(prompt, extra_key=extra_key, cache_salt=cache_salt)
    rig.run()
    assert [request.cached_tokens for request in rig.answers] == [0] * len(spaces)
    assert rig.tree.stats().tokens == len(spaces) * 53


def test_a_request_past_its_deadline_leaves_before_the_next_step() -> None:
    rig = EngineRig()
    waiting = rig.submit(numbers(300, seed=1), 10, timeout_s=0.015)
    running = rig.submit(numbers(3, seed=2), 100, timeout_s=0.035)
    rig.run()
    for request in (waiting, running):
        assert isinstance(rig.answers[request].error, DeadlineExceeded)
        assert request.state is RequestState.FINISHED
    assert 0 < len(rig.answers[running].tokens) < 100
    assert rig.tree.stats().locks == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 8])
def test_a_request_that_leaves_at_any_time_leaves_nothing_behind(steps: int) -> None:
    rig = EngineRig()
    request = rig.submit(numbers(200, seed=1), 50)
    for _ in range(steps):
        rig.step()
    rig.engine.leave(request)
    rig.engine.leave(request)
    rig.run()
    assert rig.tree.stats().locks == 0
    assert rig.pool.num_free + rig.tree.stats().evictable == rig.pool.num_slots


def test_tokens_after_a_flush_are_those_from_the_cache() -> None:
    rig = EngineRig()
    prompt = numbers(120, seed=1)
    answers = [rig.generate(prompt, 8), rig.generate(prompt, 8)]
    rig.engine.flush()
    answers.append(rig.generate(prompt, 8))
    assert [request.cached_tokens for request in rig.answers] == [0, 119, 0]
    assert answers == [foretold(prompt, 8)] * 3


def test_tokens_are_the_same_without_a_cache_under_preemption() -> None:
    rig = EngineRig(slots=200, chunk_size=16, page_size=4, block_size=4, disable_cache=True)
    stem = numbers(30, seed=1)
    asked = []
    for index in range(12):
        prompt = [*stem, *numbers(index, seed=index)]
        asked.append((rig.submit(prompt, 100), prompt))
        rig.step()
    rig.run()
    assert rig.scheduler.preemptions > 0
    for request, prompt in asked:
        assert rig.answers[request].tokens == foretold(prompt, 100)
        assert request.cached_tokens == 0
    assert rig.pool.num_free == rig.pool.num_slots


def test_under_the_priority_policy_what_matters_less_is_evicted_first() -> None:
    rig = EngineRig(slots=130, eviction_policy="priority")
    kept, gone = numbers(40, seed=1), numbers(40, seed=2)
    rig.generate(kept, 11, priority=3)
    rig.generate(gone, 11)  # later, so the least recently used is the other
    rig.generate(numbers(60, seed=3), 1)
    again = [rig.submit(prompt, 1) for prompt in (kept, gone)]
    rig.run()
    # Of what matters more the output goes before the prompt, which is one higher.
    assert again[0].cached_tokens == 39
    assert again[1].cached_tokens < 39
    assert rig.tree.stats().evicted_total > 0


@pytest.mark.parametrize("chunk_size", [7, 32, 512])
def test_a_model_of_random_weights_says_the_same_alone_and_in_any_company(chunk_size: int) -> None:
    model, _ = tiny_model()
    rng = random.Random(chunk_size)
    alone = EngineRig(model=model)
    crowd = EngineRig(model=model, slots=300, chunk_size=chunk_size)
    asked = []
    for index in range(8):
        stem = numbers(rng.randrange(60), seed=rng.randrange(3), below=model.config.vocab_size)
        own = numbers(rng.randrange(1, 30), seed=50 + index, below=model.config.vocab_size)
        prompt, max_tokens = [*stem, *own], rng.randrange(100, 210)
        asked.append((prompt, max_tokens, crowd.submit(prompt, max_tokens)))
        for _ in range(rng.randrange(4)):
            crowd.step()
    crowd.run()
    assert crowd.tree.stats().evicted_total > 0
    assert crowd.scheduler.preemptions > 0
    for prompt, max_tokens, request in asked:
        assert crowd.answers[request].tokens == alone.generate(prompt, max_tokens)
        alone.engine.flush()
