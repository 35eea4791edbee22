"""Every metric of one replica, and of all together, with its help text.

They are read from the fleet when the page is asked for, so that a replica's series end when it
leaves.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proto import keys
from radix_rs import Breaker, MirrorStats, Router, RouterError
from router.fleet import Fleet, Member
from router.metrics import PREFIX
from router.mirror import MirrorState
from router.replica_state import Liveness
from router.silence import is_silent
from router.subscriber import Stream, Subscriber


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
        "Prompt tokens that the replica really reused. Captured beyond these is the mirror's error;"
        " they may be more, as mirrors know whole blocks alone.",
        lambda r: r.member.state.tokens.delivered,
    ),
    ("delta_batches", "Delta batches read.", lambda r: r.member.mirror.totals.batches),
    ("gaps", "Holes in the sequence of batches.", lambda r: r.member.mirror.totals.gaps),
    ("new_epochs", "Restarts and flushes seen.", lambda r: r.member.mirror.totals.epochs),
    (
        "mismatches",
        "Batches and snapshots that contradicted the mirror by count or digest, or one another.",
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


class ReplicaCollector(Collector):
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
