"""Every metric of the router, with its help text.

What the data plane counts is read from it when the page is asked for. What concerns one replica is
read from the fleet then, so that its series end when it leaves.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from proto import keys
from radix_rs import Breaker, MirrorStats, Plane, Router, RouterError
from router.fleet import Fleet, Member
from router.mirror import MirrorState
from router.redis_link import RedisLink
from router.replica_state import Liveness
from router.silence import is_silent
from router.subscriber import Stream, Subscriber

PREFIX = "prefixlb_router_"

FIRST_TOKEN_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.5, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


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

    def watch(
        self,
        *,
        plane: Plane,
        fleet: Fleet,
        subscriber: Subscriber,
        router: Router,
        links: Sequence[RedisLink],
    ) -> None:
        """Show these parts on the page, as they are whenever it is asked for."""
        self.registry.register(PlaneCollector(plane))
        self.registry.register(FleetCollector(fleet, subscriber, router))
        self.registry.register(LinkCollector(links))


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
            for code, ended in reading.ended:
                requests.add_metric([reading.model, code], ended)
        yield requests
        picks = CounterMetricFamily(
            PREFIX + "picks",
            "Replicas picked for requests, retries included, by what decided.",
            labels=["reason"],
        )
        for reason, picked in self._plane.picks():
            picks.add_metric([reason], picked)
        yield picks
        yield CounterMetricFamily(
            PREFIX + "retries",
            "Requests sent to another replica because one failed before it answered.",
            self._plane.retries(),
        )
        turned_away = CounterMetricFamily(
            PREFIX + "clients_turned_away",
            "Connections and calls that were not let in, for want of a certificate or token.",
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


@dataclass(frozen=True)
class Reading:
    """One replica as the page shows it."""

    member: Member
    stream: Stream
    indexed: MirrorStats
    breaker: Breaker
    size_bytes: int
    in_flight: int
    now_s: float


Read = Callable[[Reading], float]

COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "completed_requests",
        "Requests the replica completed; the four token counters are of these.",
        lambda r: r.member.state.tokens.requests,
    ),
    ("prompt_tokens", "Tokens of their prompts.", lambda r: r.member.state.tokens.prompt),
    (
        "available_tokens",
        "Prompt tokens that the replica with the best match had cached, by the mirrors.",
        lambda r: r.member.state.tokens.available,
    ),
    (
        "captured_tokens",
        "Prompt tokens that the picked replica had cached, by its mirror.",
        lambda r: r.member.state.tokens.captured,
    ),
    (
        "delivered_tokens",
        "Prompt tokens that the replica really reused; captured less these is the mirror's error.",
        lambda r: r.member.state.tokens.delivered,
    ),
    ("delta_batches", "Delta batches read.", lambda r: r.member.mirror.totals.batches),
    ("gaps", "Holes in the sequence of batches.", lambda r: r.member.mirror.totals.gaps),
    ("new_epochs", "Restarts and flushes seen.", lambda r: r.member.mirror.totals.epochs),
    (
        "mismatches",
        "Batches and snapshots whose count or digest contradicted the mirror.",
        lambda r: r.member.mirror.totals.mismatches,
    ),
    (
        "refused_batches",
        "Batches that could not be read or had another block size or hash version.",
        lambda r: r.member.mirror.totals.refused,
    ),
    (
        "breaker_openings",
        "How often the replica's circuit breaker opened because requests failed there.",
        lambda r: r.breaker.openings,
    ),
    ("snapshots", "Snapshots asked for.", lambda r: r.member.mirror.totals.snapshots),
    (
        "failed_snapshots",
        "Snapshots that broke off or did not prove themselves.",
        lambda r: r.member.mirror.totals.failed_snapshots,
    ),
)

GAUGES: tuple[tuple[str, str, Read], ...] = (
    (
        "replica_up",
        "1 while the replica can be picked as far as its health says.",
        lambda r: r.member.state.liveness is Liveness.LIVE,
    ),
    (
        "replica_other_tokenizer",
        "1 while the replica gets text as it is: its tokenizer or chat template is not the one"
        " that most replicas of its model have.",
        lambda r: r.member.state.other_tokenizer,
    ),
    (
        "replica_silent",
        f"1 while the replica lives but has sent no batch for {keys.SILENT_S:.0f} s"
        " though Redis answers.",
        lambda r: is_silent(r.member.state),
    ),
    ("requests_in_flight", "Requests of this router there now.", lambda r: r.in_flight),
    (
        "mirror_blocks",
        "Blocks in the replica's mirror.",
        lambda r: r.indexed.count - r.indexed.forgotten,
    ),
    (
        "mirror_forgotten_blocks",
        "Blocks of the replica that --index-max-bytes made its mirror forget.",
        lambda r: r.indexed.forgotten,
    ),
    ("mirror_size_bytes", "Memory of the replica's mirror.", lambda r: r.size_bytes),
    (
        "delta_lag_seconds",
        "From Redis' time stamp on the last batch to its arrival.",
        lambda r: r.stream.lag_s,
    ),
    (
        "delta_age_seconds",
        "Since the last batch; above a few heartbeats the publisher is silent.",
        lambda r: r.now_s - r.stream.since_s,
    ),
)


class FleetCollector(Collector):
    """Reads every member of the fleet; runs on the thread of the metrics page."""

    def __init__(self, fleet: Fleet, subscriber: Subscriber, router: Router) -> None:
        self._fleet = fleet
        self._subscriber = subscriber
        self._router = router

    def collect(self) -> Iterator[Metric]:
        readings = [r for member in list(self._fleet.members.values()) if (r := self._read(member))]
        for name, text, read in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["replica", "model"])
            _fill(counter, readings, read)
            yield counter
        for name, text, read in GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["replica", "model"])
            _fill(gauge, readings, read)
            yield gauge
        yield _mirror_states(readings)
        yield _breaker_states(readings)
        refused = GaugeMetricFamily(
            PREFIX + "replica_refused",
            "1 for a replica that is not used, by what contradicts its fleet.",
            labels=["replica", "reason"],
        )
        for replica, reason in {(r.lease.replica_id, r.reason) for r in self._fleet.refusals}:
            refused.add_metric([replica, reason], 1)
        yield refused
        yield CounterMetricFamily(
            PREFIX + "last_resort_picks",
            "Picks of a replica whose answers spoke against it, as they did against all.",
            self._router.last_resorts,
        )
        yield GaugeMetricFamily(
            PREFIX + "index_size_bytes", "Memory of all mirrors.", self._router.index_size_bytes
        )
        yield GaugeMetricFamily(
            PREFIX + "index_max_bytes",
            "What it may take at most, by --index-max-bytes.",
            self._router.index_max_bytes,
        )

    def _read(self, member: Member) -> Reading | None:
        """None if the replica left since."""
        replica = member.state.id
        try:
            return Reading(
                member,
                self._subscriber.stream(replica),
                self._router.mirror(replica),
                self._router.breaker(replica, now_s=time.monotonic()),
                self._router.mirror_size_bytes(replica),
                self._router.in_flight(replica),
                time.monotonic(),
            )
        except (KeyError, RouterError):
            return None


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, readings: Sequence[Reading], read: Read
) -> None:
    for reading in readings:
        lease = reading.member.state.lease
        family.add_metric([lease.replica_id, lease.model], read(reading))


def _mirror_states(readings: Sequence[Reading]) -> GaugeMetricFamily:
    states = GaugeMetricFamily(
        PREFIX + "mirror_state",
        "1 for the state the replica's mirror is in: cold, snapshot or streaming.",
        labels=["replica", "state"],
    )
    for reading in readings:
        for state in MirrorState:
            replica = reading.member.state.id
            states.add_metric([replica, state.value], reading.member.mirror.state is state)
    return states


def _breaker_states(readings: Sequence[Reading]) -> GaugeMetricFamily:
    states = GaugeMetricFamily(
        PREFIX + "breaker_state",
        "1 for the state of the replica's circuit breaker: closed, overloaded, open or half_open.",
        labels=["replica", "state"],
    )
    for reading in readings:
        for state in ("closed", "overloaded", "open", "half_open"):
            states.add_metric([reading.member.state.id, state], reading.breaker.state == state)
    return states


class LinkCollector(Collector):
    """Whether Redis answers, for each use of it."""

    def __init__(self, links: Sequence[RedisLink]) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            PREFIX + "redis_up", "1 while Redis answers, by what it is asked for.", labels=["link"]
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
            up.add_metric([link.name], link.up)
            errors.add_metric([link.name], link.errors)
            aside.add_metric([link.name], len(link.set_aside))
        yield up
        yield errors
        yield aside
