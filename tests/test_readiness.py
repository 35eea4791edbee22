"""Who serves while Kubernetes takes some or all of them for not ready."""

import math

from router.discovery.readiness import Readiness

A, B = "10.0.0.1:30001", "10.0.0.2:30001"


def test_who_is_not_ready_leaves_after_a_while_and_who_was_never_ready_is_not_there() -> None:
    readiness = Readiness(15.0)
    assert readiness.serving([], [A], [A, B], 0.0) == {A}
    assert readiness.serving([A], [A, B], [A, B], 1.0) == {A, B}
    assert readiness.next_leaves_at_s == math.inf
    assert readiness.serving([A, B], [A], [A, B], 2.0) == {A, B}
    assert readiness.next_leaves_at_s == 17.0
    assert readiness.serving([A, B], [A], [A, B], 16.9) == {A, B}
    assert readiness.serving([A, B], [A], [A, B], 17.0) == {A}
    assert readiness.next_leaves_at_s == math.inf
    assert readiness.serving([A], [A, B], [A, B], 18.0) == {A, B}


def test_who_is_no_longer_listed_leaves_at_once() -> None:
    readiness = Readiness(15.0)
    assert readiness.serving([A, B], [A], [A, B], 0.0) == {A, B}
    assert readiness.serving([A, B], [A], [A], 1.0) == {A}
    assert readiness.serving([A], [], [], 2.0) == set()


def test_while_nobody_is_ready_all_stay_and_nobodys_time_runs() -> None:
    readiness = Readiness(15.0)
    assert readiness.serving([A, B], [A], [A, B], 0.0) == {A, B}
    for now_s in (1.0, 100.0):
        assert readiness.serving([A, B], [], [A, B], now_s) == {A, B}
        assert readiness.next_leaves_at_s == math.inf
    assert readiness.serving([A, B], [B], [A, B], 101.0) == {A, B}
    assert readiness.next_leaves_at_s == 116.0


def test_one_after_the_other_each_has_its_own_time() -> None:
    readiness = Readiness(15.0)
    assert readiness.serving([A, B], [B], [A, B], 0.0) == {A, B}
    assert readiness.serving([A, B], [A], [A, B], 10.0) == {A, B}
    assert readiness.serving([A, B], [A], [A, B], 20.0) == {A, B}
    assert readiness.next_leaves_at_s == 25.0


def test_what_was_known_before_an_outage_does_not_count() -> None:
    readiness = Readiness(15.0)
    assert readiness.serving([A, B], [A], [A, B], 0.0) == {A, B}
    readiness.begin_anew()
    assert readiness.next_leaves_at_s == math.inf
    assert readiness.serving([A, B], [A], [A, B], 100.0) == {A, B}
    assert readiness.next_leaves_at_s == 115.0
