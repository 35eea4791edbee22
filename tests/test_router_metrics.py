"""The metrics page: names, help, and what is counted."""

import math
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fake_replica import FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, until

pytestmark = pytest.mark.redis

NAME = re.compile(r"^prefixlb_router_[a-z][a-z0-9_]*$")
OTHER_UNITS = ("_ms", "_milliseconds", "_minutes", "_kb", "_percent", "_count")
LABELS = {"replica", "model", "code", "reason", "state", "link", "le", "version", "policy"}


async def samples(router: LiveRouter) -> dict[str, float]:
    """Value by name and sorted labels, as on the page."""
    found = {}
    for family in text_string_to_metric_families(await router.metrics()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('prefixlb_router_')}{{{labels}}}"] = sample.value
    return found


async def test_every_metric_is_named_and_explained_by_the_conventions(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate(prompt_of(40))
        families = list(text_string_to_metric_families(await router.metrics()))
        assert len(families) > 25
        for family in families:
            assert NAME.match(family.name), family.name
            assert family.documentation.endswith("."), family.name
            assert not family.name.endswith(OTHER_UNITS), family.name
            assert not re.search(r"_(seconds|bytes|tokens)_", family.name), family.name
            for sample in family.samples:
                assert set(sample.labels) <= LABELS, sample
                assert math.isfinite(sample.value), sample
                if family.type == "counter":
                    assert sample.name.endswith("_total"), sample
                elif family.type == "gauge":
                    assert not sample.name.endswith("_total"), sample


async def test_requests_and_tokens_are_counted_per_replica_and_model(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await router.generate(prompt)
        await router.synced(r0)
        await router.generate(prompt)
        await router.generate([])
        await router.generate([1], model="another")
        page = await samples(router)
        of_r0 = "{model=tiny,replica=r0}"
        assert page[f"completed_requests_total{of_r0}"] == 2
        assert page[f"prompt_tokens_total{of_r0}"] == 80
        assert page[f"available_tokens_total{of_r0}"] == 39
        assert page[f"captured_tokens_total{of_r0}"] == 39
        assert page[f"delivered_tokens_total{of_r0}"] == 39
        assert page["requests_total{code=OK,model=tiny}"] == 2
        assert page["requests_total{code=INVALID_ARGUMENT,model=}"] == 1
        assert page["requests_total{code=NOT_FOUND,model=}"] == 1
        assert page["requests_total{code=INTERNAL,model=tiny}"] == 0, "before it occurs"
        assert page["picks_total{reason=load}"] == page["picks_total{reason=policy}"] == 0
        assert page["picks_total{reason=cold}"] == 1
        assert page["picks_total{reason=prefix}"] == 1
        assert page["time_to_first_token_seconds_count{model=tiny}"] == 2
        assert page["inter_token_seconds_count{model=tiny}"] == 4
        assert page[f"requests_in_flight{of_r0}"] == 0


async def test_the_state_of_every_mirror_is_shown(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        await r0.store(prompt_of(40))
        await router.synced(r0)
        page = await samples(router)
        of_r0 = "{model=tiny,replica=r0}"
        assert page["mirror_state{replica=r0,state=streaming}"] == 1
        assert page["mirror_state{replica=r0,state=snapshot}"] == 0
        assert page[f"mirror_blocks{of_r0}"] == 10
        assert page[f"mirror_forgotten_blocks{of_r0}"] == 0
        assert page["index_size_bytes{}"] >= page[f"mirror_size_bytes{of_r0}"] > 0
        assert page["index_max_bytes{}"] == 2**30
        assert page[f"replica_up{of_r0}"] == 1
        assert page[f"snapshots_total{of_r0}"] == 1
        assert 0 <= page[f"delta_lag_seconds{of_r0}"] < 1
        assert 0 <= page[f"delta_age_seconds{of_r0}"] < 2
        assert page["redis_up{link=deltas}"] == page["redis_up{link=leases}"] == 1


async def test_a_publisher_that_falls_silent_shows_in_the_age_of_its_last_batch(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)

    async def silence(batch: bytes) -> None: ...

    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        r0.send = silence
        stream = router.parts.subscriber.stream("r0")
        stream.since_s -= 60  # a minute ago
        page = await samples(router)
        assert page["delta_age_seconds{model=tiny,replica=r0}"] > 59


async def test_a_redis_that_nobody_asked_for_deltas_is_not_said_to_be_away(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        await until(lambda: router.parts.discovery._link.up, what="it asks who is there")
        page = await samples(router)
        assert page["redis_up{link=leases}"] == 1
        assert "redis_up{link=deltas}" not in page
