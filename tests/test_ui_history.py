"""What the status page knows of the last hour."""

from types import SimpleNamespace
from typing import Any

from proto.prefixlb.v1.admin_pb2 import ReplicaStatus
from proto.prefixlb.v1.delta_pb2 import Lease, Load
from router.ui.history import KEPT, PERIOD_S, RECENT, History
from tests.fakes import FakeClock


class Fleet:
    """A fleet, a plane and an index that say what a test tells them to."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.replicas: dict[str, list[int]] = {}
        """Requests, prompt, available, captured and delivered tokens."""
        self.first_tokens: tuple[list[int], float] = ([0, 0], 0.0)
        self.index_clock = 0
        self.history = History(
            self.statuses, self, self, clock=self.clock, wall_clock=lambda: self.clock() + 1e9
        )

    def statuses(self) -> list[ReplicaStatus]:
        names = ("requests", "prompt_tokens", "available_tokens", "captured_tokens")
        return [
            ReplicaStatus(
                lease=Lease(replica_id=replica),
                **dict(zip((*names, "delivered_tokens"), totals, strict=True)),
                load=Load(waiting=2, pending_tokens=50),
                in_flight=1,
            )
            for replica, totals in self.replicas.items()
        ] + [ReplicaStatus(lease=Lease(replica_id="other"), refusal="id", prompt_tokens=9)]

    def models(self) -> list[Any]:
        return [SimpleNamespace(first_token=self.first_tokens)]

    def take(self, times: int = 1) -> None:
        for _ in range(times):
            self.history.take()
            self.clock.advance(PERIOD_S)


def test_a_sample_says_what_happened_since_the_one_before() -> None:
    fleet = Fleet()
    fleet.replicas = {"a": [5, 1000, 900, 800, 700], "b": [0] * 5}
    fleet.first_tokens = ([4, 1], 2.0)
    fleet.take()
    assert fleet.history.samples() == [], "nobody knows when the first ones happened"
    fleet.replicas = {"a": [7, 1200, 1090, 950, 800], "b": [1, 100, 10, 10, 10]}
    fleet.first_tokens = ([6, 2], 2.6)
    fleet.take()
    (sample,) = fleet.history.samples()
    assert (sample.requests, sample.prompt) == (3, 300)
    assert (sample.available, sample.captured, sample.delivered) == (200, 160, 110)
    assert sample.first_tokens == 3 and abs(sample.first_token_s - 0.6) < 1e-9
    assert (sample.in_flight, sample.waiting, sample.pending_tokens) == (2, 4, 100)
    assert (sample.at_s, sample.seconds) == (1e9 + 1010, PERIOD_S)


def test_a_replica_that_began_anew_counts_from_nothing_and_one_that_left_is_forgotten() -> None:
    fleet = Fleet()
    fleet.replicas = {"a": [5, 1000, 900, 800, 700], "b": [1, 9, 9, 9, 9]}
    fleet.take()
    fleet.replicas = {"a": [1, 100, 50, 50, 50]}
    fleet.take()
    assert fleet.history.samples()[-1].prompt == 100
    assert fleet.history.recent() == {"a": (100, 50)}
    assert fleet.history.rates("b") == ([0], [0])
    assert fleet.history.rates("other") == ([0], [0]), "a refused one is not counted"


def test_an_hour_is_kept_and_no_more() -> None:
    fleet = Fleet()
    for number in range(KEPT + RECENT):
        fleet.replicas["a"] = [number, 10 * number, 0, 0, number * number]
        fleet.take()
    samples = fleet.history.samples()
    prompt, delivered = fleet.history.rates("a")
    assert len(samples) == len(prompt) == len(delivered) == KEPT
    assert prompt == [sample.prompt for sample in samples] == [10] * KEPT
    assert delivered == [sample.delivered for sample in samples]
    assert fleet.history.recent() == {"a": (10 * RECENT, sum(delivered[-RECENT:]))}


def test_a_replica_that_joined_late_has_nothing_before() -> None:
    fleet = Fleet()
    fleet.take(5)
    fleet.replicas["a"] = [1, 10, 0, 0, 4]
    fleet.take()
    assert fleet.history.rates("a") == ([0, 0, 0, 0, 10], [0, 0, 0, 0, 4])


def test_stores_since_a_use_become_a_time_that_is_never_too_short() -> None:
    fleet = Fleet()
    assert fleet.history.used_within_s([0], 0) == [None], "nothing is known yet"
    for stores in (2**32 - 20, 2**32 - 10, 0, 0, 30):
        fleet.index_clock = stores
        fleet.take()
    # Now, 10 s after the last of five samples, 5 more stores have come.
    used = fleet.history.used_within_s([0, 4, 5, 34, 35, 44, 45, 54, 55, 999], 35)
    assert used == [10, 10, 20, 20, 40, 40, 50, 50, None, None]
    assert fleet.history.reaches_back_s == 50
