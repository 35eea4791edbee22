"""A router between a client and replicas, over sockets and a real Redis: what goes where."""

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2

from proto.prefixlb.v1 import admin_pb2, inference_pb2, replica_pb2
from router.server import OTHER_CALLS
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import live_router, prompt_of, request_of, until
from tests.tiny_tokenizer import tiny_codec

pytestmark = pytest.mark.redis


async def test_a_request_goes_where_its_longest_prefix_is(redis_url: str) -> None:
    r0, r1, r2 = (FakeReplica(f"r{i}", redis_url) for i in range(3))
    prompt = prompt_of(40)
    async with replicas(r0, r1, r2), live_router(redis_url) as router:
        await r0.store(prompt[:8])
        await r1.store(prompt[:24])
        await r2.store(prompt_of(40, seed=1))
        await router.synced(r0, r1, r2)
        answer = await router.generate(prompt)
        assert answer.code is grpc.StatusCode.OK
        assert answer.metadata["prefixlb-replica"] == "r1"
        assert answer.metadata["prefixlb-matched-tokens"] == "24"
        assert answer.metadata["prefixlb-reason"] == "prefix"
        assert answer.usage.cached_tokens == 24
        assert [m.text for m in answer.messages] == ["0 ", "1 ", "2 ", ""]


async def test_a_prompt_in_the_cache_to_its_end_matches_all_but_its_last_token(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(16)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt)
        await router.synced(r0)
        answer = await router.generate(prompt)
        assert answer.metadata["prefixlb-matched-tokens"] == "15"
        assert answer.usage.cached_tokens == 15


async def test_namespaces_share_no_prefix(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(16)
    namespaces = [
        {},
        {"cache_salt": "x"},
        {"extra_key": "x"},
        {"extra_key": "a", "cache_salt": "bc"},
        {"extra_key": "ab", "cache_salt": "c"},
    ]
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for namespace in namespaces:
            answer = await router.generate(prompt, **namespace)
            assert answer.metadata["prefixlb-matched-tokens"] == "0", namespace
            assert answer.usage.cached_tokens == 0, namespace
            await router.synced(r0)
        assert r0.blocks.count == len(namespaces) * 4


async def test_models_do_not_mix(redis_url: str) -> None:
    a, b = FakeReplica("a", redis_url, model="a"), FakeReplica("b", redis_url, model="b")
    prompt = prompt_of(16)
    async with replicas(a, b), live_router(redis_url) as router:
        await b.store(prompt)
        await router.synced(a, b)
        assert (await router.generate(prompt, model="a")).replica == "a"
        assert (await router.generate(prompt, model="b")).replica == "b"

        unnamed = await router.generate(prompt)
        assert unnamed.code is grpc.StatusCode.NOT_FOUND
        assert unnamed.details == "the request names no model; served: a, b"

        unknown = await router.generate(prompt, model="c")
        assert unknown.code is grpc.StatusCode.NOT_FOUND
        assert unknown.details == "unknown model 'c'; served: a, b"


async def test_the_replica_gets_ids_model_and_request_id_and_the_clients_metadata_less_control_keys(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate(
            [1, 2, 3],
            metadata=[
                ("traceparent", "00-1-2-03"),
                ("prefixlb-replica", "evil"),
                ("prefixlb-anything", "evil"),
            ],
        )
        (served,) = r0.served
        assert served.request.model == "tiny"
        assert len(served.request.request_id) == 32
        assert list(served.request.tokens.ids) == [1, 2, 3]
        assert served.metadata["traceparent"] == "00-1-2-03"
        assert not [key for key in served.metadata if key.startswith("prefixlb-")]


async def test_control_keys_in_a_replicas_answer_are_the_routers_own(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script.metadata = (("prefixlb-replica", "evil"), ("x-replica", "yes"))
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        call = router.inference.Generate(request_of([1]))
        async for _ in call:
            pass
        metadata = list(await call.initial_metadata())
        assert [v for k, v in metadata if k == "prefixlb-replica"] == ["r0"]
        assert ("x-replica", "yes") in metadata


async def test_text_and_chat_become_the_tokens_the_replica_would_make(redis_url: str) -> None:
    codec = tiny_codec()
    r0, r1 = (FakeReplica(f"r{i}", redis_url, codec=codec) for i in range(2))
    chat = inference_pb2.ChatPrompt(
        messages=[
            inference_pb2.ChatMessage(role="system", content="Be short. " * 4),
            inference_pb2.ChatMessage(role="user", content="Grüße, 世界 🙂!<|end|>"),
        ]
    )
    async with replicas(r0, r1), live_router(redis_url) as router:
        await until(lambda: router.has_codecs(r0, r1))
        assert r0.tokenizers_sent + r1.tokenizers_sent == 1  # they have one digest
        for fields, ids in (
            ({"text": "Grüße, 世界 🙂!\n"}, codec.encode("Grüße, 世界 🙂!\n")),
            ({"chat": chat}, codec.encode_chat(chat.messages)),
        ):
            answer = await router.generate(**fields)
            assert answer.code is grpc.StatusCode.OK
            served = r0.served[-1] if answer.replica == "r0" else r1.served[-1]
            assert list(served.request.tokens.ids) == ids
            assert answer.usage.prompt_tokens == len(ids)
        await router.synced(r0, r1)
        again = await router.generate(chat=chat)
        assert int(again.metadata["prefixlb-matched-tokens"]) >= len(ids) - 4


async def test_text_goes_as_it_is_to_the_least_loaded_until_the_tokenizer_is_known(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    r0.load.pending_tokens = 1000
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        await r0.publish()
        await router.synced(r0, r1)
        answer = await router.generate(text="hello")
        assert answer.replica == "r1"
        assert r1.served[0].request.text == "hello"
        assert answer.metadata["prefixlb-matched-tokens"] == "0"


async def test_text_goes_as_it_is_until_a_tokenizer_is_here(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    codec = tiny_codec()
    r0 = FakeReplica("r0", redis_url)
    r0.announced_digest = codec.digest()
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate(text="hello")
        assert r0.served[0].request.text == "hello"
        await router.generate(text="hello")
        await router.generate([1, 2, 3])
        counted = 'prefixlb_router_untokenised_prompts_total{model="tiny"} 2.0'
        assert counted in await router.metrics()
        assert caplog.text.count("text goes untokenised") == 1
        r0.codec = codec
        await until(lambda: router.has_codecs(r0))
        await router.generate(text="hello")
        assert caplog.text.count("text is tokenised again") == 1
        assert counted in await router.metrics()


async def test_the_tokenizer_of_most_replicas_serves_and_the_others_get_text(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    codec, another = tiny_codec(), tiny_codec(chat_template="another")
    r0, r1 = (FakeReplica(name, redis_url, codec=codec) for name in ("r0", "r1"))
    odd = FakeReplica("odd", redis_url, codec=another)
    tokens = codec.encode("hello hello hello hello")
    async with replicas(odd, r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1, odd)
        await until(lambda: router.has_codecs(r0, r1, odd))
        await r0.store(tokens)
        await router.synced(r0)
        answer = await router.generate(text="hello hello hello hello")
        assert (answer.replica, answer.metadata["prefixlb-reason"]) == ("r0", "prefix")
        assert list(r0.served[-1].request.tokens.ids) == tokens

        for busy in (r0, r1):
            busy.script.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await router.generate(text="hello hello hello hello")
        assert (answer.code, answer.replica) == (grpc.StatusCode.OK, "odd")
        assert odd.served[-1].request.text == "hello hello hello hello"

        statuses = await router.statuses()
        assert [name for name in statuses if statuses[name].other_tokenizer] == ["odd"]
        differs = 'prefixlb_router_replica_other_tokenizer{model="tiny",replica="odd"} 1.0'
        assert differs in await router.metrics()
        assert caplog.text.count("another tokenizer or chat template than its model's") == 1

        router.parts.fleet.update([odd.lease()])
        assert (await router.generate(text="hello")).code is grpc.StatusCode.OK
        assert list(odd.served[-1].request.tokens.ids) == another.encode("hello")
        assert not (await router.statuses())["odd"].other_tokenizer


async def test_a_tokenizer_that_is_not_the_announced_one_is_not_used(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url, codec=tiny_codec())
    r0.announced_digest = b"another"
    async with replicas(r0), live_router(redis_url) as router:
        await until(lambda: r0.tokenizers_sent >= 2, what="it is asked again")
        assert not router.has_codecs(r0)


@pytest.mark.parametrize(
    ("fields", "code", "details"),
    [
        ({}, "INVALID_ARGUMENT", "the request has no prompt: set text, chat or tokens"),
        ({"tokens": []}, "INVALID_ARGUMENT", "the prompt is empty, expected at least 1 token"),
        ({"text": ""}, "INVALID_ARGUMENT", "the prompt is empty, expected at least 1 token"),
        (
            {"chat": inference_pb2.ChatPrompt()},
            "INVALID_ARGUMENT",
            "the chat has no messages, expected at least 1",
        ),
    ],
)
async def test_a_bad_prompt_is_refused_by_the_router(
    redis_url: str, fields: dict[str, object], code: str, details: str
) -> None:
    r0 = FakeReplica("r0", redis_url, codec=tiny_codec())
    async with replicas(r0), live_router(redis_url) as router:
        await until(lambda: router.has_codecs(r0))
        answer = await router.generate(**fields)  # type: ignore[arg-type]
        assert answer.code is grpc.StatusCode[code]
        assert answer.details == details
        assert not r0.served


async def test_a_replicas_refusal_reaches_the_client_word_for_word(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    for replica in (r0, r1):
        replica.script = Script(refuse=grpc.StatusCode.INVALID_ARGUMENT)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        answer = await router.generate([1])
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
        assert answer.details in ("r0 says INVALID_ARGUMENT", "r1 says INVALID_ARGUMENT")
        assert len(r0.served) + len(r1.served) == 1  # it would be refused elsewhere too
        assert all(status.live for status in (await router.statuses()).values())


async def test_without_a_replica_a_request_is_unavailable(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        answer = await router.generate([1])
        assert answer.code is grpc.StatusCode.UNAVAILABLE
        assert answer.details == "no replica is there"


async def test_a_draining_replica_gets_nothing_new(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(16)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(prompt)
        r0.load.draining = True
        await r0.publish()
        await router.synced(r0, r1)
        assert (await router.generate(prompt)).replica == "r1"
        assert not (await router.statuses())["r0"].live


async def test_more_requests_than_max_inflight_are_refused_and_the_next_one_is_not(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=0.3)
    async with replicas(r0), live_router(redis_url, max_inflight=2, queue_size=0) as router:
        await router.synced(r0)
        running = [asyncio.create_task(router.generate([i])) for i in (1, 2)]
        await until(lambda: router.parts.admission.inflight == 2)
        third = await router.generate([3])
        assert third.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert third.details == "2 requests are in flight, the most this router takes"
        asked = request_of([3])
        for refused in (
            router.admin.Pick(admin_pb2.PickRequest(request=asked)),
            router.admin.Explain(admin_pb2.ExplainRequest(request=asked)),
        ):
            assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [(await task).code for task in running] == [grpc.StatusCode.OK] * 2
        assert (await router.generate([3])).code is grpc.StatusCode.OK
        assert router.parts.admission.inflight == 0


async def test_a_replicas_trailers_reach_the_client_but_for_what_only_a_router_says(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(trailers=(("x-engine", "7"), ("prefixlb-replica", "another")))
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        call = router.inference.Generate(request_of([1, 2, 3]))
        assert len([message async for message in call]) == 4
        assert dict(await call.trailing_metadata()) == {"x-engine": "7"}
        assert dict(await call.initial_metadata())["prefixlb-replica"] == "r0"


async def test_calls_that_wait_for_nothing_but_take_memory_are_bounded_too(redis_url: str) -> None:
    async with live_router(redis_url, max_inflight=2, queue_size=0) as router:
        watches = [
            router.health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2 + OTHER_CALLS)
        ]
        for watch in watches:
            await watch.read()
        one_more = router.health.Check(health_pb2.HealthCheckRequest())
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for watch in watches:
            watch.cancel()
        await until(lambda: all(watch.done() for watch in watches))
        await asyncio.sleep(0.1)
        assert not await router.serving()


async def test_a_request_id_is_cut_and_cannot_write_lines_of_its_own_into_the_log(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate([1], request_id="x" * 1000)
        assert r0.served[-1].request.request_id == "x" * 128
        r0.script = Script(refuse=grpc.StatusCode.UNAVAILABLE)
        await router.generate([1], request_id="evil\nline")
        (line,) = [r.getMessage() for r in caplog.records if "evil" in r.getMessage()]
        assert "\n" not in line and "request='evil\\nline'" in line


async def test_pick_and_explain_say_what_generate_would_do_and_send_nothing(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r1.store(prompt[:24])
        await router.synced(r0, r1)
        request = request_of(prompt)
        pick = await router.admin.Pick(admin_pb2.PickRequest(request=request))
        assert pick == admin_pb2.PickResponse(
            replica_id="r1",
            address=r1.address,
            prompt_tokens=40,
            matched_tokens=24,
            reason=admin_pb2.PICK_REASON_PREFIX,
        )
        explained = await router.admin.Explain(admin_pb2.ExplainRequest(request=request))
        assert explained.pick == pick
        matched = {c.replica_id: c.matched_tokens for c in explained.candidates}
        assert matched == {"r0": 0, "r1": 24}
        best = min(explained.candidates, key=lambda c: c.cost_tokens)
        assert best.replica_id == "r1"
        assert not r0.served and not r1.served
        assert all(status.in_flight == 0 for status in (await router.statuses()).values())
        with pytest.raises(aio.AioRpcError, match="no prompt"):
            await router.admin.Pick(admin_pb2.PickRequest())


async def test_explain_shows_the_candidates_when_none_can_be_picked(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        router.parts.fleet.suspect(router.member(r0).state, "for the test")
        request = request_of([1, 2, 3])
        explained = await router.admin.Explain(admin_pb2.ExplainRequest(request=request))
        assert not explained.HasField("pick")
        assert [(c.replica_id, c.eligible) for c in explained.candidates] == [("r0", False)]
        with pytest.raises(aio.AioRpcError, match="no replica of model 'tiny' can take requests"):
            await router.admin.Pick(admin_pb2.PickRequest(request=request))


@pytest.mark.parametrize(
    ("context_length", "slots", "refusal"),
    [
        (41, 40, ""),
        (40, 40, "the model's context of 40 has room for 39 beside the answer"),
        (41, 39, "the replica's pool 39 slots"),
        (0, 39, ""),  # it does not say
    ],
)
async def test_explain_says_that_the_picked_replica_would_refuse_a_prompt_for_its_length(
    redis_url: str, context_length: int, slots: int, refusal: str
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.context_length, r0.load.total_slots = context_length, slots
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        request = admin_pb2.ExplainRequest(request=request_of(prompt_of(40)))
        explained = await router.admin.Explain(request)
    assert explained.pick.replica_id == "r0"
    assert explained.refusal == (refusal and f"the prompt has 40 tokens, {refusal}")


class Mute(FakeReplica):
    """Says nothing of itself."""

    def __init__(self, name: str, redis_url: str) -> None:
        super().__init__(name, redis_url)
        self.asked = asyncio.Event()

    async def Info(
        self, request: replica_pb2.InfoRequest, context: aio.ServicerContext
    ) -> replica_pb2.InfoResponse:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_replica_that_leaves_while_it_is_asked_is_explained_without_its_bounds(
    redis_url: str,
) -> None:
    r0 = Mute("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        request = admin_pb2.ExplainRequest(request=request_of([1]))
        explaining = asyncio.ensure_future(router.admin.Explain(request))
        await asyncio.wait_for(r0.asked.wait(), 5)
        await router.member(r0).state.close()
        explained = await explaining
    assert (explained.pick.replica_id, explained.refusal) == ("r0", "")


async def test_list_replicas_adds_up_what_was_available_captured_and_delivered(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for _ in range(3):
            await router.generate(prompt)
            await router.synced(r0)
        status = (await router.statuses())["r0"]
        assert (status.requests, status.prompt_tokens) == (3, 120)
        totals = (status.available_tokens, status.captured_tokens, status.delivered_tokens)
        assert totals == (78, 78, 78)
        assert status.mirror == admin_pb2.MIRROR_STATE_STREAMING
        assert (status.epoch, status.count) == (r0.epoch, 10)
        assert status.live


async def test_a_burst_of_one_new_prefix_stays_together(redis_url: str) -> None:
    """Prompts in flight count: the second request does not wait for the first one's deltas."""
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    for replica in (r0, r1):
        replica.script = Script(first_after_s=0.2)
    prompt = prompt_of(200)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        answers = await asyncio.gather(*(router.generate([*prompt, i]) for i in range(4)))
        assert [answer.code for answer in answers] == [grpc.StatusCode.OK] * 4
        assert sorted((len(r0.served), len(r1.served))) == [0, 4]
