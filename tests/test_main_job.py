"""The whole job with real processes: what a kill costs, and that a flood leaves nothing behind."""

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proto.answer import Result
from proto.client import AsyncClient
from proto.errors import DeadlineExceeded, Unavailable
from router.cli.child import Child
from router.cli.cluster import LocalCluster
from router.cli.fleet_view import ReplicaView, view_fleet
from tests.tiny_model import VOCAB_SIZE, write_tiny_model

pytestmark = [pytest.mark.redis, pytest.mark.slow]

MAX_RUNNING = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("main-job")
    write_tiny_model(directory / "tiny")
    flags = ("--slots", "4096", "--max-running", str(MAX_RUNNING))
    with LocalCluster(
        model=directory / "tiny", state_dir=directory, replica_flags=flags
    ) as cluster:
        yield cluster


def prompt(number: int, length: int = 120) -> list[int]:
    """Token ids that begin like no other number's."""
    return [3 + (number * 7 + i * (number + 1)) % (VOCAB_SIZE - 3) for i in range(length)]


async def eventually(holds: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline_s, "never held"
        await asyncio.sleep(0.05)


def views(cluster: LocalCluster) -> dict[str, ReplicaView]:
    return {view.replica_id: view for view in view_fleet(cluster.router.address)}


def samples(child: Child) -> dict[tuple[str, str], float]:
    """(name, value of its `state` label or "") -> value, summed over other labels."""
    assert child.metrics_url
    with urllib.request.urlopen(child.metrics_url, timeout=5) as page:
        families = text_string_to_metric_families(page.read().decode())
    totals: dict[tuple[str, str], float] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, sample.labels.get("state", ""))
            totals[key] = totals.get(key, 0.0) + sample.value
    return totals


async def test_a_kill_costs_only_the_answers_its_replica_had_begun(cluster: LocalCluster) -> None:
    begun: dict[int, str] = {}
    async with AsyncClient(cluster.router.address) as client:

        async def ask(number: int) -> Result:
            answer = client.generate(prompt(number), max_tokens=400, ignore_eos=True, timeout_s=60)
            async for _ in answer:
                if number not in begun:
                    route = await answer.route()
                    assert route
                    begun[number] = route.replica
            return answer.result

        asked = [asyncio.create_task(ask(number)) for number in range(24)]
        victim, survivor = cluster.replicas

        def under_way(replica: str) -> set[int]:
            """Answers it has begun and not ended."""
            return {number for number in begun if begun[number] == replica} - {
                number for number, task in enumerate(asked) if task.done()
            }

        await eventually(lambda: under_way(victim.name) and under_way(survivor.name))
        lost = under_way(victim.name)
        victim.kill()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)

        failed = {number for number, out in enumerate(outcomes) if isinstance(out, Exception)}
        assert all(isinstance(outcomes[number], Unavailable) for number in failed)
        assert failed, "the kill came too late to hit anything"
        # Answers may have begun on their way to us while we killed; none that had not begun fails.
        assert failed <= {number for number, replica in begun.items() if replica == victim.name}
        assert failed & lost
        assert samples(cluster.router)["prefixlb_router_retries_total", ""] > 0

        for number in sorted(set(range(24)) - failed)[::5]:
            alone = await client.complete(prompt(number), max_tokens=400, ignore_eos=True)
            answered = outcomes[number]
            assert isinstance(answered, Result) and answered.token_ids == alone.token_ids

        await eventually(lambda: set(views(cluster)) == {survivor.name})
        await asyncio.to_thread(cluster.start)
        await eventually(lambda: views(cluster)[victim.name].mirror_equals_tree)
        back = views(cluster)[victim.name]
        assert back.info and (back.info.count, back.status.count) == (0, 0)


async def test_two_hundred_requests_with_cancels_and_deadlines_leave_nothing(
    cluster: LocalCluster,
) -> None:
    async with AsyncClient(cluster.router.address) as client:

        async def ask(number: int) -> str:
            tokens = prompt(number % 10, 60) + prompt(number, 40)
            late = number % 10 == 1
            answer = client.generate(
                tokens, max_tokens=24, ignore_eos=True, timeout_s=0.05 if late else 100.0
            )
            try:
                async for _ in answer:
                    if number % 10 == 2:
                        answer.cancel()
                        return "cancelled"
            except DeadlineExceeded:
                assert late
                return "late"
            return answer.result.finish_reason

        outcomes = await asyncio.gather(*(ask(number) for number in range(200)))
    counts = {outcome: outcomes.count(outcome) for outcome in set(outcomes)}
    assert counts["cancelled"] == 20
    assert counts["late"] >= 15  # a deadline of 50 ms may be met by the very first
    assert counts["length"] == 200 - counts["cancelled"] - counts["late"]

    def at_rest() -> bool:
        for child in cluster.replicas:
            seen = samples(child)
            busy = ("requests_in_flight", "running_requests", "waiting_requests")
            if any(seen[f"prefixlb_replica_{name}", ""] for name in busy):
                return False
            slots = {s: seen["prefixlb_replica_slots", s] for s in ("own", "protected", "free")}
            evictable = seen["prefixlb_replica_slots", "evictable"]
            if slots["own"] or slots["protected"] or slots["free"] + evictable != 4096:
                return False
        in_flight = [view.status.in_flight for view in views(cluster).values()]
        return not any(in_flight) and all(v.mirror_equals_tree for v in views(cluster).values())

    await eventually(at_rest)
