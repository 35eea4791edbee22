"""`prefixlb sim` and `prefixlb hash-log`: what they read, what they say, and what comes of it."""

import json
import resource
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from proto.errors import InvalidRequest
from radix_rs import (
    ReplicaState,
    Rules,
    SimulatedReplicas,
    Trace,
    chain_hashes,
    simulate,
    simulate_picker,
)
from router.cli.command_line import run
from router.cli.hash_log import hashed
from router.cli.sim import plot, tenants, trace_file
from router.cli.sim.fleet import Fleet
from router.cli.sim.fleet import simulate as play
from router.cli.sim.progress import progress
from router.settings import POLICIES, RouterSettings

LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def trace(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "trace.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_sim_offers_every_policy_of_the_router() -> None:
    assert set(POLICIES) == set(RouterSettings.model_fields["policy"].annotation.__args__)  # type: ignore[union-attr]


def test_a_trace_is_played_in_the_order_of_arrival_from_its_first_request_on(
    tmp_path: Path,
) -> None:
    later = {**LINE, "timestamp": 9000, "hash_ids": [1, 3]}
    workload = trace_file.read(trace(tmp_path, later, "", {**LINE, "timestamp": 4000}), 512)
    assert [request.arrived_s for request in workload.requests] == [0, 5]
    assert [list(request.hashes) for request in workload.requests] == [[1, 2], [1, 3]]
    assert workload.most_cached == 512 / 1200
    assert workload.utilisation(240) == 1


def test_a_line_may_say_the_size_of_its_blocks(tmp_path: Path) -> None:
    lines = [{**LINE, "block_size": 300}, {**LINE, "block_size": 300}]
    assert trace_file.read(trace(tmp_path, *lines), 512).block_size == 300
    with pytest.raises(InvalidRequest, match=r"blocks of \[300, 512\] tokens"):
        trace_file.read(trace(tmp_path, LINE, lines[0]), 512)


def test_a_size_of_blocks_that_the_trace_contradicts_is_refused_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, {**LINE, "block_size": 300})
    command = ["sim", "--trace", str(path), "--policy", "random", "--block-size"]
    assert run([*command, "512"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"--block-size 512: {path} says itself that its blocks have 300 tokens" in said
    assert run([*command, "300"]) == run(command[:-1]) == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nonsense", "expected a JSON object (Expecting value at character 1)"),
        ('{"timestamp": 0', "expected a JSON object (Expecting ',' delimiter at character 16)"),
        ("9" * 5000, "expected a JSON object (Exceeds the limit"),
        ([1], "expected a JSON object, got [1]"),
        ({**LINE, "timestamp": None}, "timestamp: expected milliseconds from 0 on, got nothing"),
        ({**LINE, "timestamp": True}, "timestamp: expected milliseconds"),
        ({**LINE, "input_length": "9"}, 'input_length: expected a whole number of tokens, got "9"'),
        ({**LINE, "output_length": -1}, "output_length: expected a whole number"),
        ({**LINE, "hash_ids": [1, "2"]}, "hash_ids: expected a list of whole numbers"),
        ({**LINE, "hash_ids": [2**64]}, "hash_ids: expected a list of whole numbers"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(
    line: object, expected: str, tmp_path: Path
) -> None:
    path = trace(tmp_path, LINE, line)
    with pytest.raises(InvalidRequest) as error:
        trace_file.read(path, 512)
    assert str(error.value).startswith(f"{path}:2: ")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({**LINE, "hash_ids": []}, "0 block hashes for 600 tokens, expected 2"),
        ({**LINE, "input_length": 0, "hash_ids": []}, "expected at least 1"),
        ({**LINE, "hash_ids": [2, 1]}, "block 2 begins a prompt here and follows 1 before"),
    ],
)
def test_a_request_that_contradicts_itself_or_others_is_named(
    line: object, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, LINE, line)
    assert run(["sim", "--trace", str(path)]) == 1
    shown = capsys.readouterr().err
    assert f"{path}:2: " in shown and expected in shown


def test_a_missing_or_empty_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot read the trace .*/none: No such file"):
        trace_file.read(tmp_path / "none", 512)
    with pytest.raises(InvalidRequest, match="has no requests"):
        trace_file.read(trace(tmp_path, ""), 512)


def test_made_requests_follow_from_their_seed() -> None:
    one, same = (tenants.make(50, 5, 512, seed=1) for _ in range(2))
    assert one == same != tenants.make(50, 5, 512, seed=2)
    assert len(one.requests) == 50


def test_seeing_prefixes_wins_and_several_routers_lose_little() -> None:
    workload = tenants.make(3000, 60, 512, seed=3).faster(4)
    fleet = Fleet(cache_tokens=500_000)
    cost, blind = play("cost", workload, fleet), play("round_robin", workload, fleet)
    assert cost.hit_rate > blind.hit_rate + 0.1
    assert cost.ttft_mean_s < blind.ttft_mean_s / 2
    eight = play("cost", workload, Fleet(cache_tokens=500_000, routers=8, lag_s=0.03))
    assert eight.hit_rate > cost.hit_rate - 0.02
    three = play("cost", workload, Fleet(cache_tokens=500_000, routers=3, lag_s=0.03))
    assert three.hit_rate > 0.95 * cost.hit_rate
    assert three.ttft_mean_s < 1.05 * cost.ttft_mean_s
    lossy = play("cost", workload, Fleet(cache_tokens=500_000, loss=0.1))
    assert lossy.snapshots > 8 and lossy.hit_rate > cost.hit_rate - 0.02


def test_twelve_thousand_requests_on_eight_replicas_take_less_than_two_seconds_of_a_core() -> None:
    def spent_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before_s = spent_s()
    flags = ("--policy", "cost", "--requests", "12000", "--replicas", "8", "--json")
    command = [sys.executable, "-m", "router.cli", "sim", *flags]
    played = subprocess.run(command, capture_output=True, check=True)
    took_s = spent_s() - before_s  # unlike a clock's, no time of whoever else runs
    found = json.loads(played.stdout)
    assert (found["workload"]["requests"], found["fleet"]["replicas"]) == (12_000, 8)
    assert took_s < 2.0


def test_json_has_each_policy_and_says_what_was_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, LINE, {**LINE, "timestamp": 5000})
    assert run(["sim", "--trace", str(path), "--policy", "all", "--replicas", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"]["requests"] == 2 and found["fleet"]["replicas"] == 1
    assert set(found["policies"]) == set(POLICIES)
    for result in found["policies"].values():
        assert result["hit_rate"] == 599 / 1200 and result["imbalance"] == 1


def test_a_table_is_plain_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--requests", "40", "--policy", "cost,random", "--utilisation", "0.5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("60 tenants: 40 requests")
    assert shown[1].endswith("without a cache 50 % busy")
    assert [line.split()[0] for line in shown[2:]] == ["policy", "cost", "random"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--policy", "best"],
        ["--loss", "1"],
        ["--replicas", "0"],
        ["--speed", "2", "--utilisation", "1"],
    ],
)
def test_a_bad_flag_ends_with_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["sim", *flags])
    assert end.value.code == 2
    assert "usage: prefixlb sim" in capsys.readouterr().err


def test_progress_speaks_up_after_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times_s = iter((0.0, 1.0, 3.0, 3.0, 4.0, 9.0, 9.0))
    with progress("cost", 200, clock=lambda: next(times_s)) as report:
        for done in (50, 100, 120, 150):
            report(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["cost: 50 % of 200 requests", "cost: 75 % of 200 requests"]


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["sim", "--plot", str(tmp_path / "x.txt")]) == 1
    assert run(["sim", "--plot", str(tmp_path / "none" / "x.png")]) == 1
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert run(["sim", "--plot", str(tmp_path / "x.png")]) == 1
    endings, directory, extra = capsys.readouterr().err.splitlines()
    assert "ending in .png" in endings and "there is no directory" in directory
    assert 'install the extra "plot"' in extra


def test_a_plot_is_a_picture_with_a_bar_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot")
    workload = tenants.make(40, 5, 512, seed=1)
    results = {policy: play(policy, workload, Fleet()) for policy in ("cost", "random")}
    path = tmp_path / "x.svg"
    plot.draw(path, "title", results)
    assert path.read_text().lstrip().startswith("<?xml")
    plot.draw(tmp_path / "x.png", "title", results)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_hash_log_gives_equal_numbers_to_equal_prefixes_of_one_namespace() -> None:
    asked = [
        {"timestamp": 0, "token_ids": [1, 2, 3, 4, 5], "output_length": 7},
        {"timestamp": 10, "token_ids": [1, 2, 3, 9]},
        {"timestamp": 20, "token_ids": [1, 2, 3, 9], "cache_salt": "s"},
    ]
    key = bytes(range(16))
    first, second, salted = hashed(map(json.dumps, asked), 2, key)
    assert first["hash_ids"] == chain_hashes(
        array("I", [1, 2, 3, 4, 5]), hash_key=key, model="", block_size=2
    )
    assert first["hash_ids"][0] == second["hash_ids"][0] != salted["hash_ids"][0]
    assert first["hash_ids"][1] != second["hash_ids"][1]
    assert (first["input_length"], first["output_length"], first["block_size"]) == (5, 7, 2)
    assert second["output_length"] == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "request 1: expected a JSON object"),
        ('{"token_ids": [1]}', 'with "timestamp" and "token_ids"'),
        ('{"timestamp": 0, "token_ids": []}', "token_ids: expected a list of at least one"),
        ('{"timestamp": 0, "token_ids": [-1]}', "token_ids: expected a list"),
        ('{"timestamp": 0, "token_ids": [1], "cache_salt": 3}', "cache_salt: expected text"),
    ],
)
def test_hash_log_names_the_request_it_cannot_read(line: str, expected: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        list(hashed([line], 16, bytes(16)))
    assert expected in str(error.value)


def test_hash_log_of_nothing_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "router.cli", "hash-log"], input="\n", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: stdin has no requests, expected a JSON object a line\n"


class Fixed:
    """Always the same replica."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.heard: list[tuple[str, int]] = []

    def pick(self, now_s: float, request: int, replicas: list[ReplicaState]) -> int:
        self.states = replicas
        return self.replica

    def first_token(self, request: int) -> None:
        self.heard.append(("first token", request))

    def ended(self, request: int) -> None:
        self.heard.append(("ended", request))


def small_trace() -> Trace:
    made = Trace(block_size=512)
    made.add(0.0, 600, 5, [1, 2])
    made.add(5.0, 600, 5, [1, 2])
    return made


def test_another_rule_sees_the_replicas_and_hears_of_its_requests() -> None:
    rule = Fixed(1)
    simulated = simulate_picker(small_trace(), SimulatedReplicas(2, cache_tokens=10_000), rule)
    assert simulated.requests == [0, 2] and simulated.cached_tokens == 599
    assert [state.matched_blocks for state in rule.states] == [0, 2]
    assert rule.heard == [("first token", 0), ("ended", 0), ("first token", 1), ("ended", 1)]


def test_what_makes_no_sense_is_a_python_error() -> None:
    replicas = SimulatedReplicas(2, cache_tokens=10_000)
    with pytest.raises(IndexError, match="replica 7 of 2"):
        simulate_picker(small_trace(), replicas, Fixed(7))
    with pytest.raises(ValueError, match='unknown policy "best"'):
        Rules(policy="best")
    with pytest.raises(ValueError, match=r"balance_rel_threshold is 0\.5"):
        Rules(balance_rel_threshold=0.5)
    with pytest.raises(ValueError, match="0 replicas"):
        SimulatedReplicas(0, cache_tokens=1)
    with pytest.raises(ValueError, match='unknown order "lifo"'):
        SimulatedReplicas(1, cache_tokens=1, order="lifo")
    with pytest.raises(ValueError, match="block_size is 0"):
        Trace(block_size=0)

    def stop(requests: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(small_trace(), replicas, progress=stop)
