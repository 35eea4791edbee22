"""A short campaign of faults: nothing is lost, and every mirror equals its tree again."""

import random
from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.campaign import MEMORY_SLACK_BYTES, campaign

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]

SOME = [
    faults.redis_restarts,
    faults.redis_is_full_and_evicts_our_keys,
    faults.redis_fails_over_to_a_copy,
    faults.replica_dies_and_restarts,
    faults.replica_is_flushed,
    faults.router_dies_and_restarts,
    faults.deltas_are_dropped,
    faults.deltas_are_reordered,
]
SCALE = 0.15
"""Of how long faults are held in a full campaign."""


async def test_after_each_fault_every_mirror_heals_and_no_request_was_lost(tmp_path: Path) -> None:
    order = list(SOME)
    random.Random(1).shuffle(order)
    async with campaign(tmp_path, seed=1, hold_s=lambda full_s: SCALE * full_s) as field:
        trials = [await field.throw(fault) for fault in order]
        growth = field.growth()
    outcomes = field.load.outcomes
    assert [trial for trial in trials if trial.failure] == []
    assert outcomes.violations == []
    assert outcomes.counts["answered"] > 100
    assert max(growth.values()) <= MEMORY_SLACK_BYTES
