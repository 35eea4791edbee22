"""A collector of OpenTelemetry: a real server of OTLP over gRPC that keeps the spans."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

WHOLE = "prefixlb.v1.Inference/Generate"
"""The span of a call at who serves it."""


@dataclass(frozen=True)
class Span:
    """One as a collector sees it."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]
    """Unix nanoseconds by name."""
    is_error: bool
    message: str
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])

    def holds(self, other: "Span", within_ns: int = 0) -> bool:
        """Whether `other` is within its time, by the clocks of two processes or of one."""
        return (
            self.began_ns - within_ns <= other.began_ns <= other.ended_ns
            and other.ended_ns <= self.ended_ns + within_ns
        )


@dataclass
class Collector(TraceServiceServicer):
    """Keeps what comes."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    received: bytes = b""
    """Every message, one after the other."""
    _comes: threading.Condition = field(default_factory=threading.Condition)

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        with self._comes:
            self.received += request.SerializeToString()
            for of_resource in request.resource_spans:
                resource = _attributes(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self.spans += (_span(span, resource) for span in of_scope.spans)
            self._comes.notify_all()
        return ExportTraceServiceResponse()

    def of_trace(self, trace: str, wholes: int = 1, timeout_s: float = 10.0) -> list[Span]:
        """Its spans in the order of their begin, once so many calls of it are here."""

        def found() -> list[Span]:
            return [span for span in self.spans if span.trace == trace]

        with self._comes:
            end_s = time.monotonic() + timeout_s
            while sum(span.name == WHOLE for span in found()) < wholes:
                left_s = end_s - time.monotonic()
                assert left_s > 0, f"of {trace} only {[span.name for span in found()]} came"
                self._comes.wait(left_s)
            return sorted(found(), key=lambda span: (span.began_ns, span.name != WHOLE))


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """One that listens in the block; port 0 takes a free one."""
    kept = Collector()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        add_TraceServiceServicer_to_server(kept, server)
        kept.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        try:
            yield kept
        finally:
            server.stop(None).wait()


def _span(span: trace_pb2.Span, resource: dict[str, Any]) -> Span:
    assert not span.links and not span.trace_state
    return Span(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events={event.name: event.time_unix_nano for event in span.events},
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=span.status.message,
        resource=resource,
    )


def _attributes(pairs: "Iterator[KeyValue] | Any") -> dict[str, Any]:
    found = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
    assert len(found) == len(pairs)
    return found
