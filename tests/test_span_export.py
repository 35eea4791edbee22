"""What a span that cannot be sent costs: itself, and no other."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proto.span_export import SpanExport
from proto.traced import Traced
from replica.traces import Span
from tests.live_router import until


def traced(name: str, kind: str = "server") -> Traced:
    return 1, [Span(name, kind, id=2, parent=None, began_ns=3, ended_ns=4)]


class Taken:
    """Gives its steps one after the other, then nothing."""

    def __init__(self, *steps: Sequence[Traced] | Exception) -> None:
        self._steps = list(steps)

    def __call__(self, most: int) -> Sequence[Traced]:
        step = self._steps.pop(0) if self._steps else ()
        if isinstance(step, Exception):
            raise step
        return step


async def test_spans_that_cannot_be_built_are_counted_and_told_once_and_the_next_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = InMemorySpanExporter()
    wrong = [traced("wrong", kind="unheard of")]
    export = SpanExport(Taken(wrong, wrong, [traced("right")]), exporter, Resource({}))
    async with export.running():
        pass
    assert [span.name for span in exporter.get_finished_spans()] == ["right"]
    assert (export.sent, export.failed) == (1, 2)
    assert caplog.messages == ["spans cannot be sent error=KeyError"]


async def test_what_cannot_be_taken_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    export = SpanExport(Taken(RuntimeError("x"), [traced("right")]), exporter, Resource({}))
    async with export.running():
        await until(lambda: export.sent == 1, 5.0, "the next is sent")
    assert export.failed == 1
    assert caplog.messages == ["spans cannot be sent error=RuntimeError"]
