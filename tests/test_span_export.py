"""What a span that cannot be sent costs: itself, and no other."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proto.span_export import SpanExport
from proto.spans import Traced
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
        await until(lambda: export.sent == 1, 5.0, "the next is sent")
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


class Away(SpanExporter):
    """A collector that is reached by nothing from the start."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


async def test_what_is_lost_at_the_end_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    taken = Taken([traced("a"), traced("b")], [traced("c")])
    async with SpanExport(taken, Away(), Resource({})).running():
        pass
    assert caplog.messages == ["spans are lost at the end spans=3"]


async def test_what_was_lost_before_is_not_told_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    export = SpanExport(Taken([traced("a")]), Away(), Resource({}))
    async with export.running():
        await until(lambda: export.failed == 1, 5.0, "it is refused")
    assert not caplog.messages
