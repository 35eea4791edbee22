"""Spans on their way to a collector, by OTLP, on a thread of its own: no request waits for it.

Imported only where requests are traced, as it needs the packages of `prefixlb[traces]`.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from proto.errors import InvalidFile
from proto.spans import METHOD, Span, Take, Traced

log = logging.getLogger(__name__)

PERIOD_S = 0.5
"""Between two looks at what is there to be sent."""

MOST_REQUESTS = 128
"""In one message to the collector, which takes 4 MiB usually."""

FLUSH_S = 3.0
"""What is left at the end has so long, and then the collector is not waited for any more."""

LAST_S = 1.0
"""For the thread to see that."""

SCOPE = InstrumentationScope("prefixlb", version("prefixlb"))

FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Codes that speak against who answered; others speak against who asked."""


class SpanExport:
    """Takes what was traced, again and again, and sends it; what the collector refuses is gone."""

    def __init__(self, take: Take, exporter: SpanExporter, resource: Resource) -> None:
        self._take = take
        self._exporter = exporter
        self._resource = resource
        self._told: set[type[Exception]] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self.sent = 0
        """Spans that the collector took."""
        self.failed = 0
        """Spans that it did not take."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send in the block, and at its end what is left, for a while."""
        self._thread.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._stop)

    def collector(self, prefix: str, dropped: Callable[[], int]) -> Collector:
        """What became of spans, for a metrics page, under names that begin so.

        `dropped`: traced requests that were not even taken.
        """
        return SpanCollector(prefix, self, dropped)

    def _stop(self) -> None:
        failed_before = self.failed
        self._ending.set()
        self._thread.join(FLUSH_S)
        self._exporter.shutdown()  # which ends what it waits for
        self._thread.join(LAST_S)
        if lost := self.failed - failed_before:
            # Nobody reads the metrics any more, and the exporter says nothing of what it gives up.
            log.warning("spans are lost at the end spans=%d", lost)

    def _run(self) -> None:
        while not self._ending.wait(PERIOD_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while taken := self._taken():
            num_spans = sum(len(spans) for _, spans in taken)
            if self._is_sent(taken):
                self.sent += num_spans
            else:
                self.failed += num_spans

    def _taken(self) -> Sequence[Traced]:
        try:
            return self._take(MOST_REQUESTS)
        except Exception as error:  # of nobody knows how many; the next may come
            self.failed += 1
            self._tell_once(error)
            return ()

    def _is_sent(self, taken: Sequence[Traced]) -> bool:
        try:
            spans = [span for traced in taken for span in self._readable(*traced)]
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # they count as failed, and the next may go
            self._tell_once(error)
            return False

    def _tell_once(self, error: Exception) -> None:
        """Of each kind: the metrics count how many."""
        if type(error) not in self._told:
            self._told.add(type(error))
            log.error("spans cannot be sent error=%s", type(error).__name__)

    def _readable(self, trace: int, spans: Sequence[Span]) -> Iterator[ReadableSpan]:
        def context(span: int, *, is_remote: bool) -> SpanContext:
            return SpanContext(trace, span, is_remote, TraceFlags(TraceFlags.SAMPLED))

        for span in spans:
            is_first = span is spans[0]
            yield ReadableSpan(
                name=span.name,
                context=context(span.id, is_remote=False),
                parent=context(span.parent, is_remote=is_first) if span.parent else None,
                resource=self._resource,
                attributes={**dict(span.attributes), **_of_call(span)},
                events=_events(span),
                kind=SpanKind[span.kind.upper()],
                instrumentation_scope=SCOPE,
                status=Status(StatusCode.ERROR if _is_fault(span) else StatusCode.UNSET),
                start_time=span.began_ns,
                end_time=span.ended_ns,
            )


def _of_call(span: Span) -> dict[str, str]:
    if span.code is None:
        return {}
    said = {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": span.code,
    }
    return {**said, "error.type": span.code} if _is_fault(span) else said


def _is_fault(span: Span) -> bool:
    if span.kind == "client":
        return span.code != "OK"
    return span.code in FAULTS


def _events(span: Span) -> Sequence[Event]:
    return [] if span.answered_ns is None else [Event("first message", timestamp=span.answered_ns)]


def span_export(endpoint: str, take: Take, *, service: str, instance: str) -> SpanExport:
    """To a collector; `service` and `instance` are what the environment may call otherwise.

    Raises InvalidFile if the environment says what cannot be.
    """
    resource = Resource.create(
        {
            "service.name": service,
            "service.version": version("prefixlb"),
            "service.instance.id": instance,
        }
    )
    named = resource.merge(OTELResourceDetector().detect())
    return SpanExport(take, exporter_to(endpoint), named)


def exporter_to(endpoint: str) -> SpanExporter:
    """Raises InvalidFile if the environment says what cannot be."""
    # Each attempt would be a line; what it comes to is one.
    logging.getLogger(OTLPSpanExporter.__module__.rpartition(".")[0]).setLevel(logging.ERROR)
    try:
        return OTLPSpanExporter(endpoint=endpoint)
    except Exception as error:  # of several kinds, each about a variable of the environment
        raise InvalidFile(f"spans cannot be sent to {endpoint}: {error}") from error


class SpanCollector(Collector):
    """What became of spans, for a metrics page."""

    def __init__(self, prefix: str, export: SpanExport, dropped: Callable[[], int]) -> None:
        self._prefix = prefix
        self._export = export
        self._dropped = dropped

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (
            ("spans_sent", "Spans that the collector took.", self._export.sent),
            ("spans_failed", "Spans that the collector did not take.", self._export.failed),
            (
                "traces_dropped",
                "Traced requests of which nothing was sent, as too many waited for it.",
                self._dropped(),
            ),
        ):
            yield CounterMetricFamily(self._prefix + name, text, value)
