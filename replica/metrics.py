"""Every metric of a replica."""

from importlib.metadata import version

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from proto.prefixlb.v1 import delta_pb2

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters and gauges, in `registry`; labelled with the model where a fleet may mix them."""

    def __init__(self, registry: CollectorRegistry, *, model: str) -> None:
        def counter(name: str, text: str) -> Counter:
            metric = Counter(f"prefixlb_replica_{name}", text, ["model"], registry=registry)
            return metric.labels(model)

        def gauge(name: str, text: str) -> Gauge:
            metric = Gauge(f"prefixlb_replica_{name}", text, ["model"], registry=registry)
            return metric.labels(model)

        def histogram(name: str, text: str) -> Histogram:
            metric = Histogram(
                f"prefixlb_replica_{name}", text, ["model"], registry=registry, buckets=_SECONDS
            )
            return metric.labels(model)

        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of requests answered.")
        self.cached_tokens = counter(
            "cached_tokens_total",
            "Prompt tokens whose keys and values were reused: what is delivered. The tree counts "
            "pages, routers whole blocks, so this may be more than what they captured.",
        )
        self.prefilled_tokens = counter(
            "prefilled_tokens_total", "Tokens computed before a first or resumed output token."
        )
        self.generated_tokens = counter("generated_tokens_total", "Output tokens sampled.")
        self.evicted_tokens = counter("evicted_tokens_total", "Tokens evicted from the tree.")
        self.preemptions = counter(
            "preemptions_total", "Requests that gave their slots back and waited again."
        )
        self.steps = counter("steps_total", "Forward passes.")
        self.ttft_s = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first output token."
        )
        self.inter_token_s = histogram(
            "inter_token_seconds", "Between two output tokens of one request."
        )
        self.requests = Counter(
            "prefixlb_replica_requests_total",
            "Generate calls ended, by gRPC status.",
            ["model", "code"],
            registry=registry,
        )
        self.in_flight = gauge("requests_in_flight", "Generate calls being served.")
        self.running = gauge("running_requests", "Requests being decoded.")
        self.waiting = gauge("waiting_requests", "Requests whose prefill is not complete.")
        self.pending_tokens = gauge(
            "pending_prefill_tokens", "Tokens of waiting requests neither cached nor computed."
        )
        self.announced_prompts = gauge(
            "announced_prompts", "Prompts that routers were told to expect and that still wait."
        )
        self.announced_tokens = gauge(
            "announced_prompt_tokens", "Tokens of these prompts, less what was cached."
        )
        self._slots = Gauge(
            "prefixlb_replica_slots",
            "KV slots, one a token: free, evictable, protected by running requests, or their own.",
            ["model", "state"],
            registry=registry,
        )
        self.published_batches = counter("published_batches_total", "Delta batches sent to Redis.")
        self.last_published = gauge(
            "last_published_timestamp_seconds",
            "When Redis took the last delta batch, a heartbeat at least; 0 before the first.",
        )
        self.publish_failures = counter(
            "publish_failures_total", "Attempts to send a delta batch that Redis did not take."
        )
        self.dropped_bytes = counter(
            "dropped_delta_bytes_total", "Bytes of deltas dropped because the backlog was full."
        )
        self.backlog_bytes = gauge("delta_backlog_bytes", "Bytes of deltas not yet in Redis.")
        self.lease_failures = counter("lease_failures_total", "Lease renewals that Redis refused.")
        self.refused_files = counter(
            "refused_files_total",
            "Changes of certificate files to something that is no good: the old ones stay in use.",
        )
        self.certificate_expiry = gauge(
            "certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in Unix time; 0 without TLS.",
        )
        self._build = Info(
            "prefixlb_replica_build",
            "Version of this replica, and the id that routers know it by.",
            ["model"],
            registry=registry,
        )
        self.registry = registry
        self._model = model

    def is_replica(self, replica_id: str) -> None:
        """Its id, once that is known."""
        build = {"version": version("prefixlb"), "replica": replica_id}
        self._build.labels(self._model).info(build)

    def total(self, name: str) -> int:
        """What the counter `name` stands at."""
        labels = {"model": self._model}
        value = self.registry.get_sample_value(f"prefixlb_replica_{name}_total", labels)
        if value is None:
            raise KeyError(name)
        return int(value)

    def count_request(self, code: str) -> None:
        self.requests.labels(self._model, code).inc()

    def count_refused(self, method: str, code: grpc.StatusCode) -> None:
        """A call of `method` ended before it had a readable message."""
        if method.endswith("/Generate"):
            self.count_request(code.name)

    def show(self, load: delta_pb2.Load, *, protected: int) -> None:
        """Set the gauges of requests and slots."""
        self.running.set(load.running)
        self.waiting.set(load.waiting)
        self.pending_tokens.set(load.pending_tokens)
        own = load.total_slots - load.free_slots - load.evictable_slots - protected
        for state, value in (
            ("free", load.free_slots),
            ("evictable", load.evictable_slots),
            ("protected", protected),
            ("own", own),
        ):
            self._slots.labels(self._model, state).set(value)
