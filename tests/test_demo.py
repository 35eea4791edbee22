"""The demo's parts: the order of turns, what is sent, and a verdict that can say no."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from proto.answer import Result, Route
from router.cli.demo.assistants import ASSISTANTS
from router.cli.demo.play import Played, play
from router.cli.demo.report import ReplicaTotals, Run, show, verdict
from router.cli.demo.screen import Screen
from router.cli.demo.workload import schedule
from tests.fake_router import FakeRouter, fake_router


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as router:
        yield router


def test_schedule_asks_every_question_once_and_in_order_within_a_conversation() -> None:
    turns = schedule()
    assert turns == schedule()
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))
    for assistant in ASSISTANTS:
        for user, questions in assistant.users.items():
            asked = [turn.question for turn in turns if turn.user == user]
            assert asked == list(questions)


def test_users_have_one_assistant_each() -> None:
    users = [user for assistant in ASSISTANTS for user in assistant.users]
    assert len(users) == len(set(users)) == 12


async def test_play_sends_histories_in_order_a_few_at_a_time(router: FakeRouter) -> None:
    turns = schedule()
    with Screen(Console(quiet=True)) as screen:
        played = await play(router.address, turns, concurrency=4, screen=screen)
    assert [one.turn for one in played] == turns and all(one.result for one in played)
    assert 2 <= router.most_running <= 4
    sent = {request.chat.messages[-1].content: request.chat.messages for request in router.requests}
    for turn in turns:
        messages = sent[turn.question]
        assert messages[0].content == turn.assistant.system
        roles = [message.role for message in messages]
        assert roles == ["system", *["user", "assistant"] * turn.index, "user"]


async def test_play_reports_a_request_that_fails_and_goes_on() -> None:
    turns = schedule()[:3]
    console = Console(width=200, record=True)
    with Screen(console) as screen:
        played = await play("127.0.0.1:1", turns, concurrency=2, screen=screen)
    assert all(one.error for one in played)
    assert console.export_text().count("failed:") == 3


def result(cached: int, ttft_s: float) -> Result:
    return Result(
        "so", (1,), "stop", 100, cached, 1, Route("replica-0", cached, "prefix"), ttft_s, 1
    )


def a_run(policy: str, cached: int) -> Run:
    """100 requests of 100 tokens each; the n-th had its first token after n/100 s."""
    turn = schedule()[0]
    played = [Played(turn, result(cached, n / 100)) for n in range(1, 101)]
    totals = ReplicaTotals("replica-0", 100, 10_000, 100 * cached, 500, 40, 7, 7, True)
    return Run(policy, 12.0, played, [totals])


def test_figures_of_a_run() -> None:
    run = a_run("cost", 80)
    assert (run.hit_rate, run.prefilled_tokens, run.evicted_tokens) == (0.8, 500, 40)
    assert run.mean_ttft_s == pytest.approx(0.505)
    assert run.p99_ttft_s == 0.99


def test_verdict_is_yes_only_if_all_of_it_holds() -> None:
    ours, other = a_run("cost", 80), a_run("round_robin", 40)
    assert all(claim.holds for claim in verdict(ours, other))
    assert [claim.key for claim in verdict(ours, other)] == [
        "every_request_answered",
        "reuses_more_than_baseline",
        "pool_evicted",
        "mirrors_equal_trees",
    ]
    failed = dataclasses.replace(ours, played=[*ours.played, Played(schedule()[0], error="gone")])
    broken = {
        "every_request_answered": (failed, other),
        "reuses_more_than_baseline": (a_run("cost", 40), other),
        "pool_evicted": (changed(ours, evicted_tokens=0), other),
        "mirrors_equal_trees": (ours, changed(other, mirror_equals_tree=False)),
    }
    for key, runs in broken.items():
        assert [claim.key for claim in verdict(*runs) if not claim.holds] == [key]


def changed(run: Run, **fields: object) -> Run:
    return dataclasses.replace(
        run, replicas=[dataclasses.replace(totals, **fields) for totals in run.replicas]
    )


def test_report_shows_both_policies_side_by_side() -> None:
    console = Console(width=200, record=True)
    show(console, a_run("cost", 80), a_run("round_robin", 40))
    text = console.export_text()
    rate = next(line for line in text.splitlines() if "token hit rate" in line)
    assert rate.split()[-4:] == ["80.0", "%", "40.0", "%"]
    assert "NO" not in text


def test_the_p99_of_few_requests_is_called_what_it_is() -> None:
    console = Console(width=200, record=True)
    run = a_run("cost", 80)
    show(console, dataclasses.replace(run, played=run.played[:36]), a_run("round_robin", 40))
    assert "p99 time to first token (slowest of 36)" in console.export_text()
    show(console, run, a_run("round_robin", 40))
    assert "slowest" not in console.export_text()


@pytest.mark.model
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_holds_on_the_real_model(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "router.cli", "demo", "--json", "--model", str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert all(answer["claims"].values())
    ours, other = answer["runs"]
    assert (ours["requests"], ours["failed"]) == (len(schedule()), 0)
    assert ours["prefilled_tokens"] < other["prefilled_tokens"] / 2
    assert sum(replica["requests"] for replica in ours["replicas"]) == ours["requests"]
