"""Traces of a router, as a real collector gets them, and what callers and replicas see of them."""

import asyncio
import socket
import sys
import time
from typing import Any

import grpc
import pytest

from proto.errors import InvalidFile
from proto.prefixlb.v1.inference_pb2 import ChatMessage, ChatPrompt
from proto.settings import BadSettings
from proto.span_export import FLUSH_S, LAST_S, PERIOD_S, exporter_to
from proto.spans import Caller, caller_of
from proto.tracing import (
    ALL_IDS,
    ENDPOINTS,
    HEADERS,
    LIMIT,
    Sampling,
    Tracing,
    find_tracing,
    read_tracing,
)
from router.settings import parse_settings
from tests.collector import WHOLE, Span, collector
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until
from tests.ports import free_port
from tests.tiny_tokenizer import tiny_codec

pytestmark = pytest.mark.redis

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STATE = ("tracestate", "vendor=1")

SAYABLE = {
    *("prefixlb.request_id", "prefixlb.replica", "prefixlb.reason", "prefixlb.matched_tokens"),
    *("prefixlb.available_tokens", "gen_ai.request.model", "gen_ai.usage.input_tokens"),
    *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens", "rpc.system.name"),
    *("rpc.method", "rpc.response.status_code", "error.type"),
}
"""All attributes that a span may have."""


def caller(flags: str = "01") -> tuple[str, str]:
    return ("traceparent", f"00-{TRACE}-{CALLER}-{flags}")


def assert_is_tree(spans: list[Span]) -> tuple[Span, list[Span]]:
    """One call and its steps, which follow each other."""
    whole, *steps = spans
    assert (whole.name, whole.kind, whole.service) == (WHOLE, "server", "prefixlb-router")
    assert len({span.id for span in spans}) == len(spans)
    at_ns = whole.began_ns
    for step in steps:
        assert step.parent == whole.id and step.trace == whole.trace
        assert at_ns <= step.began_ns <= step.ended_ns <= whole.ended_ns, step
        at_ns = step.ended_ns
    for span in spans:
        assert set(span.attributes) <= SAYABLE and not span.message
    return whole, steps


def codes(spans: list[Span]) -> list[tuple[str, Any, bool]]:
    """Of calls: name, status and whether it is an error."""
    code = "rpc.response.status_code"
    return [
        (each.name, each.attributes[code], each.is_error)
        for each in spans
        if each.attributes.get(code)
    ]


async def test_a_streamed_answer_is_a_tree_of_spans_from_admission_to_the_last_message(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await r0.store(prompt[:16])
            await router.synced(r0)
            r0.script = Script(tokens=3, first_after_s=0.05, gap_s=0.03)
            began_ns = time.time_ns()
            answer = await router.generate(
                prompt, request_id="request-7", metadata=[caller(), STATE]
            )
            ended_ns = time.time_ns()
            assert answer.code is grpc.StatusCode.OK
            spans = await asyncio.to_thread(collected.of_trace, TRACE)
    whole, steps = assert_is_tree(spans)
    admission, match, pick, forward = steps
    assert [step.name for step in steps] == ["admission", "match", "pick", "forward"]
    assert [step.kind for step in steps] == ["internal"] * 3 + ["client"]
    assert whole.parent == CALLER
    assert began_ns <= whole.began_ns <= whole.ended_ns <= ended_ns
    assert codes(spans) == [(WHOLE, "OK", False), ("forward", "OK", False)]

    for step in (admission, match, pick):
        assert step.ended_ns - step.began_ns < 50e6 and not step.events
    first_ns = forward.events["first message"]
    assert 50e6 <= first_ns - forward.began_ns < forward.ended_ns - forward.began_ns - 60e6

    assert pick.attributes == {
        "prefixlb.replica": "r0",
        "prefixlb.reason": "prefix",
        "prefixlb.matched_tokens": 16,
        "prefixlb.available_tokens": 16,
    }
    assert forward.attributes["prefixlb.replica"] == "r0"
    assert whole.attributes == {
        "prefixlb.request_id": "request-7",
        "prefixlb.replica": "r0",
        "prefixlb.reason": "prefix",
        "prefixlb.matched_tokens": 16,
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 3,
        "rpc.system.name": "grpc",
        "rpc.method": WHOLE,
        "rpc.response.status_code": "OK",
    }
    (served,) = r0.served
    assert served.metadata["traceparent"] == f"00-{TRACE}-{forward.id}-01"
    assert served.metadata["tracestate"] == "vendor=1"
    assert answer.metadata["prefixlb-request-id"] == served.request.request_id == "request-7"


async def test_a_request_without_a_trace_begins_one_and_a_text_has_a_step_of_its_own(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url, codec=tiny_codec())
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await until(lambda: router.has_codecs(r0))
            answer = await router.generate(text="Name three rivers.", metadata=[STATE])
            (served,) = r0.served
            _, trace, _, flags = str(served.metadata["traceparent"]).split("-")
            whole, steps = assert_is_tree(await asyncio.to_thread(collected.of_trace, trace))
    assert (whole.parent, flags) == ("", "01")
    assert [each.name for each in steps] == ["admission", "tokenise", "match", "pick", "forward"]
    assert "tracestate" not in served.metadata  # it was about no trace
    made = answer.metadata["prefixlb-request-id"]
    assert whole.attributes["prefixlb.request_id"] == served.request.request_id == made


async def test_a_request_that_finds_no_room_ends_at_admission(redis_url: str) -> None:
    with collector() as collected:
        settings = {"otlp_traces_endpoint": collected.endpoint, "max_inflight": 1, "queue_size": 0}
        async with live_router(redis_url, **settings) as router:
            assert router.parts.plane.enter()
            call = router.inference.Generate(
                request_of([1], request_id="too-much"), metadata=(caller(),)
            )
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            router.parts.plane.leave()
            assert dict(await call.trailing_metadata())["prefixlb-request-id"] == "too-much"
            spans = await asyncio.to_thread(collected.of_trace, TRACE)
    whole, steps = assert_is_tree(spans)
    assert [step.name for step in steps] == ["admission"]
    assert codes(spans) == [(WHOLE, "RESOURCE_EXHAUSTED", False)]
    assert whole.attributes["prefixlb.request_id"] == "too-much"


async def test_every_try_is_a_span_and_its_replicas_work_is_part_of_it(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    r0.script = Script(refuse=grpc.StatusCode.UNAVAILABLE)
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0, r1), traced as router:
            await r0.store(prompt)
            await router.synced(r0, r1)
            answer = await router.generate(prompt, metadata=[caller()])
            assert answer.replica == "r1"
            spans = await asyncio.to_thread(collected.of_trace, TRACE)
    whole, steps = assert_is_tree(spans)
    tries = ["match", "pick", "forward"]
    assert [step.name for step in steps] == ["admission", *tries, *tries]
    assert codes(spans) == [
        (WHOLE, "OK", False),
        ("forward", "UNAVAILABLE", True),
        ("forward", "OK", False),
    ]
    forwards = [step for step in steps if step.name == "forward"]
    assert [step.attributes["prefixlb.replica"] for step in forwards] == ["r0", "r1"]
    assert whole.attributes["prefixlb.replica"] == "r1"
    for replica, forward in zip((r0, r1), forwards, strict=True):
        assert replica.served[0].metadata["traceparent"] == f"00-{TRACE}-{forward.id}-01"


async def test_a_request_that_is_given_up_ends_cancelled_with_what_was_under_way(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1000, gap_s=0.01)
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await router.synced(r0)
            call = router.inference.Generate(request_of([1, 2, 3]), metadata=(caller(),))
            await call.read()
            call.cancel()
            spans = await asyncio.to_thread(collected.of_trace, TRACE)
    _, steps = assert_is_tree(spans)
    assert codes(spans) == [(WHOLE, "CANCELLED", False), ("forward", "CANCELLED", True)]
    assert "first message" in steps[-1].events


async def test_callers_decide_and_what_they_do_not_want_traced_is_traced_nowhere(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    r0 = FakeReplica("r0", redis_url)
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await router.synced(r0)
            await router.generate([1], metadata=[caller("00"), STATE])
            await router.generate([1])
            await router.generate([1], metadata=[caller("01")])
            await asyncio.to_thread(collected.of_trace, TRACE)
        assert {span.trace for span in collected.spans} == {TRACE}
        assert sum(span.name == WHOLE for span in collected.spans) == 1
    unwanted, unasked, wanted = (served.metadata for served in r0.served)
    assert (unwanted["traceparent"], unwanted["tracestate"]) == (caller("00")[1], "vendor=1")
    assert str(unasked["traceparent"]).endswith("-00")  # or the replica would decide anew
    assert str(wanted["traceparent"]).endswith("-01")


@pytest.mark.parametrize("said", [caller()[1], caller("00")[1], "00-1-2-03", None])
async def test_without_a_collector_nothing_is_traced_and_what_callers_say_passes_unchanged(
    redis_url: str, said: str | None
) -> None:
    r0 = FakeReplica("r0", redis_url)
    sent = [STATE] if said is None else [("traceparent", said), STATE]
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate([1], metadata=sent)
        assert router.parts.plane.take_traces(9) == []
        assert "spans_sent" not in await router.metrics()
    (served,) = r0.served
    assert [(k, v) for k, v in served.metadata.items() if k.startswith("trace")] == sent


async def test_no_span_has_a_prompt_or_what_quotes_one(redis_url: str) -> None:
    codec = tiny_codec()
    r0 = FakeReplica("r0", redis_url, codec=codec)
    secret = "The violet umbrella of Ms. Quennell"
    told = [ChatMessage(role="violet", content=secret)]
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await until(lambda: router.has_codecs(r0))
            await router.generate(text=secret, cache_salt="walrus", extra_key="zebra")
            await router.generate(chat=ChatPrompt(messages=told), metadata=[("x-secret", "violet")])
            await router.generate([1], model="violet")
            r0.script = Script(refuse=grpc.StatusCode.INVALID_ARGUMENT)
            r0.id = "Quennell"  # which its refusal quotes
            await router.generate(text=secret, metadata=[caller()])
            await asyncio.to_thread(collected.of_trace, TRACE)
        assert len({span.trace for span in collected.spans}) == 4
        for span in collected.spans:
            assert set(span.attributes) <= SAYABLE and not span.message
        for word in ("violet", "umbrella", "Quennell", "walrus", "zebra"):
            assert word.encode() not in collected.received, word


async def answered_fast(router: LiveRouter, number: int) -> None:
    for _ in range(number):
        began_s = time.monotonic()
        answer = await router.generate([1], metadata=[caller()])
        assert answer.code is grpc.StatusCode.OK
        assert time.monotonic() - began_s < 1.0


async def test_a_collector_that_dies_and_comes_back_costs_spans_and_nothing_else(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    r0 = FakeReplica("r0", redis_url)
    port = free_port()
    traced = live_router(redis_url, otlp_traces_endpoint=f"http://127.0.0.1:{port}")
    async with replicas(r0), traced as router:
        await router.synced(r0)
        with collector(port) as collected:
            await answered_fast(router, 3)
            await asyncio.to_thread(collected.of_trace, TRACE, 3)
        await answered_fast(router, 20)

        async def lost() -> float:
            lines = (await router.metrics()).splitlines()
            counted = dict(line.rsplit(" ", 1) for line in lines if line[:1] != "#")
            assert float(counted["prefixlb_router_spans_sent_total"]) >= 3 * 5
            assert float(counted["prefixlb_router_traces_dropped_total"]) == 0
            return float(counted["prefixlb_router_spans_failed_total"])

        async with asyncio.timeout(10):
            while await lost() < 20 * 5:  # noqa: ASYNC110 - a page
                await asyncio.sleep(0.1)
        with collector(port) as collected:
            async with asyncio.timeout(20):
                while not collected.spans:
                    await answered_fast(router, 1)
                    await asyncio.sleep(0.1)


async def test_a_collector_that_never_answers_holds_up_neither_requests_nor_the_end(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait to be accepted
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with replicas(r0):
            async with live_router(redis_url, otlp_traces_endpoint=endpoint) as router:
                await router.synced(r0)
                await answered_fast(router, 20)
                await asyncio.sleep(2 * PERIOD_S)  # the first are on their way now
                ends_s = time.monotonic()
            assert time.monotonic() - ends_s < FLUSH_S + LAST_S + 1.0
    told = [each for each in caplog.messages if each.startswith("spans are lost")]
    assert told == ["spans are lost at the end spans=100"]


async def test_what_was_answered_last_is_sent_before_the_router_ends(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    with collector() as collected:
        traced = live_router(redis_url, otlp_traces_endpoint=collected.endpoint)
        async with replicas(r0), traced as router:
            await router.synced(r0)
            await router.generate([1], metadata=[caller()])
        assert [span.trace for span in collected.spans] == [TRACE] * 5


async def test_a_router_without_the_packages_says_which_they_are(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "proto.span_export", None)
    with pytest.raises(InvalidFile, match=r"--otlp-traces-endpoint: .*prefixlb\[traces\]"):
        async with live_router(redis_url, otlp_traces_endpoint="http://127.0.0.1:1"):
            pass


@pytest.mark.parametrize(
    ("asked_by", "environment", "told"),
    [
        (ENDPOINTS[1], {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "sent by grpc alone"),
        (ENDPOINTS[0], {"OTEL_TRACES_SAMPLER": "xray"}, "OTEL_TRACES_SAMPLER is xray"),
        (ENDPOINTS[1], {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "spans cannot be sent to"),
    ],
)
async def test_an_environment_meant_for_others_stops_no_router(
    redis_url: str,
    asked_by: str,
    environment: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in {asked_by: "http://127.0.0.1:1", **environment}.items():
        monkeypatch.setenv(name, value)
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate([1])
        assert r0.served and "traceparent" not in r0.served[0].metadata
    (line,) = [each for each in caplog.messages if "traces" in each]
    assert f"asked_by={asked_by}" in line and told in line


def test_an_environment_that_wants_traces_gets_them_only_with_the_packages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {ENDPOINTS[1]: "http://127.0.0.1:1"}
    assert find_tracing("", environment) == read_tracing("http://127.0.0.1:1", {})
    assert not caplog.messages
    monkeypatch.setitem(sys.modules, "proto.span_export", None)
    assert find_tracing("", environment) is None
    assert f"asked_by={ENDPOINTS[1]}" in caplog.text and "prefixlb[traces]" in caplog.text
    assert "--otlp-traces-endpoint" not in caplog.text


def test_flag_and_environment_say_what_is_traced() -> None:
    all_of = Sampling(True, ALL_IDS)
    assert read_tracing("", {}) is None
    assert read_tracing("http://a:1", {}) == Tracing("http://a:1", all_of)
    given = {ENDPOINTS[1]: "http://b:2"}
    assert read_tracing("", given) == Tracing("http://b:2", all_of)
    given[ENDPOINTS[0]] = "http://c:3"
    assert read_tracing("", given) == Tracing("http://c:3", all_of)
    assert read_tracing("http://a:1", given) == Tracing("http://a:1", all_of)
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        assert read_tracing("http://a:1", {name: value}) is None
    for sampler, ratio, expected in (
        ("always_on", "0.5", Sampling(False, ALL_IDS)),
        ("parentbased_always_off", "", Sampling(True, 0)),
        ("traceidratio", "0.25", Sampling(False, ALL_IDS // 4)),
        ("parentbased_traceidratio", "", all_of),
    ):
        said = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": ratio}
        found = read_tracing("http://a:1", said)
        assert found and found.sampling == expected, sampler


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"OTEL_TRACES_SAMPLER": "xray"}, "OTEL_TRACES_SAMPLER is xray, but only these"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG is 2, but must be a number from 0 to 1",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "sent by grpc alone"),
        ({LIMIT: "lots"}, f"{LIMIT} is lots, but must be a whole number of 0 or more"),
        ({LIMIT: "-1"}, f"{LIMIT} is -1, but must be a whole number of 0 or more"),
    ],
)
def test_what_cannot_be_done_is_told(said: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_tracing("http://a:1", said)
    assert read_tracing("", said) is None  # nobody wants it


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("authorization=Bearer secret", [("authorization", "Bearer secret")]),
        ("Api_Key.2 = a%20b%22=c% ,x-b=", [("api_key.2", 'a b"=c%'), ("x-b", "")]),
        (" a=1,,b= x y%20z ,", [("a", "1"), ("b", "x y%20z")]),
        ("a=1\n", [("a", "1")]),
    ],
)
def test_headers_that_opentelemetry_reads_are_let_through(
    said: str,
    read: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(HEADERS[1], said)
    assert find_tracing("http://a:1")
    exporter = exporter_to("http://a:1")
    exporter.shutdown()
    assert list(exporter._headers) == read  # type: ignore[attr-defined]
    assert not caplog.messages


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize(
    "said",
    [
        *("Bearer secret", "=secret", "a b=secret", "a!=secret", "é=secret", "secret-bin=secret"),
        *('a="secret"', "a=secret;b", "a=sécret", "a=secret%0Ab", "a=secret%ff", "a=b\tsecret"),
        "a=b,secret",
    ],
)
def test_headers_that_cannot_be_sent_stop_the_start_and_are_not_quoted(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, said)
    with pytest.raises(BadSettings, match=f"^{name}: header [12] is not NAME=VALUE") as refused:
        parse_settings(["--otlp-traces-endpoint", "http://a:1"])
    monkeypatch.setenv(ENDPOINTS[1], "http://a:1")
    assert find_tracing("") is None
    (told,) = caplog.messages
    assert name in told and "no traces are sent" in told
    assert "cret" not in told + str(refused.value)


def test_a_ratio_is_a_part_of_the_traces_and_the_same_part_everywhere() -> None:
    quarter = Sampling(True, ALL_IDS // 4)
    assert quarter.takes(ALL_IDS + ALL_IDS // 4 - 1, None)
    assert not quarter.takes(ALL_IDS + ALL_IDS // 4, None)
    assert quarter.takes(ALL_IDS - 1, True) and not quarter.takes(1, False)
    alone = Sampling(False, ALL_IDS // 4)
    assert not alone.takes(ALL_IDS - 1, True) and alone.takes(1, False)


def test_a_caller_is_who_says_so_as_the_standard_has_it() -> None:
    known = caller()[1]
    parsed = Caller(int(TRACE, 16), int(CALLER, 16), is_sampled=True)
    assert caller_of([("x", "y"), caller()]) == parsed
    assert caller_of([("traceparent", f"cc{known[2:]}-more")]) == parsed
    unsampled = caller_of([caller("02")])
    assert unsampled and not unsampled.is_sampled
    for wrong in (
        *("", "00-1-2-03", known[:54], known + "-", known + "0", f"ff{known[2:]}"),
        *(f"cc{known[2:]}.", known.upper(), known.replace("-", "_", 1)),
        *(known.replace(CALLER, "0" * 16), known.replace(TRACE, "0" * 32)),
    ):
        assert caller_of([("traceparent", wrong)]) is None, wrong
    assert caller_of([caller(), caller()]) is None
    assert caller_of(None) is None


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://a:99999", "http://a:0", "http://:4317", "http://"),
        *("http://me:secret@[a", "http://me:secret@a:4317"),
    ],
)
def test_an_endpoint_that_is_no_address_is_refused_without_its_password(endpoint: str) -> None:
    with pytest.raises(ValueError, match="a port from 1 to 65535") as refused:
        read_tracing(endpoint, {})
    assert "secret" not in str(refused.value)
    assert find_tracing("", {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) is None
