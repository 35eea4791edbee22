"""Traces of a replica, and of a whole cluster, as a real collector gets them."""

import asyncio
import random
from pathlib import Path

import grpc
import pytest

from proto.client import Client
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.tracing import ALL_IDS, Sampling
from replica.traces import MAX_WAITING, Traces
from router.cli.cluster import LocalCluster
from tests.collector import WHOLE, Span, collector
from tests.fakes import FakeClock
from tests.replica_rig import replica_rig, tokens_request
from tests.tiny_model import write_tiny_model

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def caller(flags: str = "01", trace: str = TRACE) -> tuple[tuple[str, str]]:
    return (("traceparent", f"00-{trace}-{CALLER}-{flags}"),)


def assert_follow_each_other(whole: Span, steps: list[Span]) -> None:
    at_ns = None
    for step in steps:
        assert step.parent == whole.id and step.kind == "internal"
        assert whole.holds(step, within_ns=1000) and step.ended_ns >= step.began_ns
        assert at_ns is None or abs(step.began_ns - at_ns) < 1000, "one ends where the next begins"
        at_ns = step.ended_ns


async def test_an_answer_is_queue_prefill_and_decode_and_says_what_was_cached() -> None:
    prompt = list(range(3, 103))
    with collector() as collected:
        async with replica_rig(
            otlp_traces_endpoint=collected.endpoint, replica_id="replica-7"
        ) as rig:
            await rig.generate(tokens_request(prompt, 4))
            request = tokens_request(prompt, 6, request_id="second")
            async for _ in rig.inference.Generate(request, metadata=caller()):
                pass
            spans = await asyncio.to_thread(collected.of_trace, TRACE)
        assert len({span.trace for span in collected.spans}) == 2  # the first began one
    whole, *steps = spans
    assert (whole.name, whole.kind, whole.parent) == (WHOLE, "server", CALLER)
    assert [step.name for step in steps] == ["queue", "prefill", "decode"]
    assert_follow_each_other(whole, steps)
    first_ns = whole.events["first message"]
    assert abs(first_ns - steps[-1].began_ns) < 1000
    assert whole.resource["service.name"] == "prefixlb-replica"
    assert whole.resource["service.instance.id"] == "replica-7"
    assert whole.attributes == {
        "gen_ai.request.model": "tiny",
        "prefixlb.request_id": "second",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 99,
        "gen_ai.usage.output_tokens": 6,
        "rpc.system.name": "grpc",
        "rpc.method": WHOLE,
        "rpc.response.status_code": "OK",
    }


async def test_what_is_refused_or_given_up_ends_where_it_was_and_quotes_nothing() -> None:
    other = "b" * 32
    with collector() as collected:
        async with replica_rig(otlp_traces_endpoint=collected.endpoint) as rig:
            refused = rig.inference.Generate(tokens_request([987654]), metadata=caller())
            assert await refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "987654" in await refused.details()
            call = rig.inference.Generate(
                tokens_request([3, 4, 5], 1500), metadata=caller(trace=other)
            )
            await call.read()
            call.cancel()
            (wrong,) = await asyncio.to_thread(collected.of_trace, TRACE)
            whole, *steps = await asyncio.to_thread(collected.of_trace, other)
        assert b"987654" not in collected.received
    assert wrong.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert not wrong.is_error and not wrong.message
    assert whole.attributes["rpc.response.status_code"] == "CANCELLED"
    assert [step.name for step in steps] == ["queue", "prefill", "decode"]
    assert_follow_each_other(whole, steps)


async def test_who_does_not_want_a_trace_or_asks_a_replica_without_a_collector_gets_none() -> None:
    with collector() as collected:
        async with replica_rig(otlp_traces_endpoint=collected.endpoint) as rig:
            async for _ in rig.inference.Generate(tokens_request([3], 2), metadata=caller("00")):
                pass
        async with replica_rig() as rig:
            async for _ in rig.inference.Generate(tokens_request([3], 2), metadata=caller()):
                pass
            assert rig.replica._inference._traces is None
        assert collected.spans == []


def test_traces_that_nobody_takes_are_bounded_and_counted() -> None:
    clock = FakeClock()
    traces = Traces(
        Sampling(True, ALL_IDS),
        model="m",
        ids=random.Random(1),
        clock=clock,
        wall_clock_ns=lambda: 10**18,
    )
    for _ in range(MAX_WAITING + 3):
        traced = traces.begin(())
        assert traced is not None
        clock.advance(1.0)
        traces.end(traced, grpc.StatusCode.UNAVAILABLE)
    assert traces.dropped() == 3
    ((_, (span,)),) = traces.take(1)
    assert (span.began_ns, span.ended_ns) == (10**18, 10**18 + 10**9)
    assert len(traces.take(2 * MAX_WAITING)) == MAX_WAITING - 1


@pytest.mark.redis
@pytest.mark.slow
def test_one_request_is_one_trace_through_the_processes_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path / "tiny")
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.endpoint)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=llm")
        with LocalCluster(model=tmp_path / "tiny", state_dir=tmp_path, replicas=2) as cluster:
            with grpc.insecure_channel(cluster.router.address) as channel:
                request = tokens_request(list(range(3, 203)), 8)
                list(InferenceStub(channel).Generate(request, metadata=caller()))
                spans = collected.of_trace(TRACE, wholes=2)
            with Client(cluster.router.address) as client:
                client.complete("What comes last is sent, too.", max_tokens=1)
        assert sum(span.name == WHOLE for span in collected.spans) == 4
    by_name = {(span.service, span.name): span for span in spans}
    router = [name for service, name in by_name if service == "prefixlb-router"]
    replica = [name for service, name in by_name if service == "prefixlb-replica"]
    assert router == [WHOLE, "admission", "match", "pick", "forward"]
    assert replica == [WHOLE, "queue", "prefill", "decode"]
    forward = by_name["prefixlb-router", "forward"]
    served = by_name["prefixlb-replica", WHOLE]
    assert served.parent == forward.id
    assert by_name["prefixlb-router", WHOLE].parent == CALLER
    # Two processes, one clock: what is within is within, but for what reading a clock costs.
    assert forward.holds(served, within_ns=2_000_000)
    for name in replica[1:]:
        assert by_name["prefixlb-replica", name].parent == served.id
    ids = {span.attributes["prefixlb.request_id"] for span in spans if span.name == WHOLE}
    assert len(ids) == 1 and len(ids.pop()) == 32
    assert {span.resource["k8s.namespace.name"] for span in spans} == {"llm"}
