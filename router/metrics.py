"""Every metric of the router but those of its replicas, with its help text.

What the data plane counts is read from it when the page is asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from radix_rs import Plane
from router.redis_link import RedisLink

PREFIX = "prefixlb_router_"

FIRST_TOKEN_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.5, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)

REASONS = ("prefix", "load", "cold", "policy")
"""What may decide a pick. These and all codes are on the page before they occur: of a counter that
comes into being at 1, `rate` would not see the first.
"""


class Metrics:
    """What is counted where it happens."""

    def __init__(self, *, policy: str) -> None:
        self.registry = CollectorRegistry()
        self.untokenised_prompts = Counter(
            PREFIX + "untokenised_prompts",
            "Texts that could not be tokenised, as no tokenizer was here yet: they match nothing.",
            ["model"],
            registry=self.registry,
        )
        self.refused_files = Counter(
            PREFIX + "refused_files",
            "Changes of files to something that is no good: what they held before stays in use.",
            ["files"],
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            PREFIX + "certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in Unix time.",
            ["files"],
            registry=self.registry,
        )
        self.leased_picks = Gauge(
            PREFIX + "leased_picks",
            "Picks that callers send by themselves and have not released.",
            registry=self.registry,
        )
        self.expired_leases = Counter(
            PREFIX + "expired_leases",
            "Picks whose lease ran out before they were released.",
            registry=self.registry,
        )
        self.settings_reloaded = Gauge(
            PREFIX + "settings_last_reload_successful",
            "0 if the settings were no good when they were last read: the old ones stay.",
            registry=self.registry,
        )
        self.settings_reload_time = Gauge(
            PREFIX + "settings_last_reload_success_timestamp_seconds",
            "When the settings were last read and good, in Unix time.",
            registry=self.registry,
        )
        self._build = Info(
            PREFIX + "build", "Version and policy of this router.", registry=self.registry
        )
        self.policy_is(policy)

    def policy_is(self, policy: str) -> None:
        """It has changed."""
        self._build.info({"version": version("prefixlb"), "policy": policy})

    def watch(self, *collectors: Collector) -> None:
        """Show what these read on the page, as it is whenever it is asked for."""
        for collector in collectors:
            self.registry.register(collector)


class PlaneCollector(Collector):
    """What the data plane counts of requests; runs on the thread of the metrics page."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        models = self._plane.models()
        requests = CounterMetricFamily(
            PREFIX + "requests",
            "Requests that ended, by gRPC status.",
            labels=["model", "code"],
        )
        for reading in models:
            ended = dict(reading.ended)
            for code in grpc.StatusCode:
                requests.add_metric([reading.model, code.name], ended.get(code.name, 0))
        yield requests
        picks = CounterMetricFamily(
            PREFIX + "picks",
            "Replicas picked for requests, retries included, by what decided.",
            labels=["reason"],
        )
        for reason, picked in (dict.fromkeys(REASONS, 0) | dict(self._plane.picks())).items():
            picks.add_metric([reason], picked)
        yield picks
        yield CounterMetricFamily(
            PREFIX + "retries",
            "Requests sent to another replica because one failed before it answered.",
            self._plane.retries(),
        )
        turned_away = CounterMetricFamily(
            PREFIX + "clients_turned_away",
            "Connections and calls that were not let in, or ended, by what was wrong with them.",
            labels=["reason"],
        )
        for reason, times, _ in self._plane.turned_away():
            turned_away.add_metric([reason], times)
        yield turned_away
        yield GaugeMetricFamily(
            PREFIX + "requests_queued",
            "Requests that wait because as many as may be are in flight.",
            self._plane.queued,
        )
        yield GaugeMetricFamily(
            PREFIX + "requests_held_bytes",
            "Memory of requests that no answer has begun to; at most --max-held-bytes.",
            self._plane.held_bytes,
        )
        yield GaugeMetricFamily(
            PREFIX + "client_connections",
            "Connections of clients; above --max-connections those that rest are closed.",
            self._plane.connections,
        )
        yield _histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to the first message of its answer.",
            FIRST_TOKEN_BUCKETS,
            {reading.model: reading.first_token for reading in models},
        )
        yield _histogram(
            "inter_token_seconds",
            "Between two messages of an answer that carry tokens.",
            INTER_TOKEN_BUCKETS,
            {reading.model: reading.inter_token for reading in models},
        )


def _histogram(
    name: str,
    text: str,
    bounds_s: Sequence[float],
    by_model: Mapping[str, tuple[Sequence[int], float]],
) -> HistogramMetricFamily:
    """Of the models that have a value."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=["model"])
    names = [*map(floatToGoString, bounds_s), "+Inf"]
    for model, (counts, sum_s) in by_model.items():
        if any(counts):
            family.add_metric([model], list(zip(names, accumulate(counts), strict=True)), sum_s)
    return family


class LinkCollector(Collector):
    """Whether Redis answers, for each use of it."""

    def __init__(self, links: Sequence[RedisLink]) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            PREFIX + "redis_up",
            "1 while Redis answers, by what it is asked for; nothing before it was asked.",
            labels=["link"],
        )
        errors = CounterMetricFamily(
            PREFIX + "redis_errors", "Commands that failed, by their use.", labels=["link"]
        )
        aside = GaugeMetricFamily(
            PREFIX + "redis_set_aside",
            "What is in Redis but cannot be read, so that the rest is used without it.",
            labels=["link"],
        )
        for link in self._links:
            if link.was_asked:
                up.add_metric([link.name], link.up)
            errors.add_metric([link.name], link.errors)
            aside.add_metric([link.name], len(link.set_aside))
        yield up
        yield errors
        yield aside


class Apiserver(Protocol):
    """Who asks it."""

    up: bool | None
    """Whether it answers; None until it was asked."""
    errors: int


class KubernetesCollector(Collector):
    """Whether the apiserver answers, where it says which replicas there are."""

    def __init__(self, apiserver: Apiserver) -> None:
        self._apiserver = apiserver

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            PREFIX + "kubernetes_up",
            "1 while the apiserver answers; else the replicas are those it named last.",
            value=bool(self._apiserver.up),
        )
        yield CounterMetricFamily(
            PREFIX + "kubernetes_errors",
            "Attempts to list or watch endpoints that failed.",
            value=self._apiserver.errors,
        )
