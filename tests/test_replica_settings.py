"""Settings of a replica: flags, environment, and what is said about bad ones."""

from pathlib import Path

import pytest

from replica.__main__ import main
from replica.settings import read_settings
from replica.tree_core import CoreName, make_tree


def test_flags_go_before_the_environment_and_both_before_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPLICA_SLOTS", "77")
    monkeypatch.setenv("REPLICA_MAX_RUNNING", "3")
    settings = read_settings(["--model", "m.gguf", "--slots", "99"])
    assert (settings.slots, settings.max_running, settings.page_size) == (99, 3, 1)
    assert settings.model == Path("m.gguf")
    assert settings.redis_url is None


@pytest.mark.parametrize(
    ("flags", "complaints"),
    [
        ([], ['safetensors; --model "$(prefixlb model)" serves the small one of the demo']),
        (
            ["--model", "x", "--slots", "0", "--port", "many"],
            ["--port: Input should be a valid integer", "--slots: Input should be greater"],
        ),
        (["--model", "x", "--block-size", "24", "--page-size", "16"], ["24 is not a multiple"]),
        (["--model", "x", "--chunk-size", "8", "--page-size", "16"], ["chunk_size 8 is below"]),
        (
            ["--model", "x", "--eviction-options", "threshold=3"],
            ['policy lru: unknown option "threshold", known: none'],
        ),
        (
            ["--model", "x", "--eviction-policy", "slru", "--eviction-options", "hits=3"],
            ['policy slru: unknown option "hits", known: threshold'],
        ),
        (
            ["--model", "x", "--eviction-policy", "slru", "--eviction-options", "threshold=-1"],
            ["policy option threshold: expected a number, 0 or more, got -1"],
        ),
        (
            ["--model", "x", "--eviction-policy", "slru", "--eviction-options", "threshold=x"],
            ["--eviction-options: Input should be a valid number"],
        ),
        (["--model", "x", "--schedule-policy", "sjf"], ["--schedule-policy: Input should be 'sho"]),
        (
            ["--model", "x", "--redis-url", "localhost"],
            ["--redis-url: expected redis:"],
        ),
        (
            ["--model", "x", "--redis-url", "redis://r", "--host", "0.0.0.0"],
            ["set advertise_address"],
        ),
        *(
            (["--model", "x", "--replica-id", name], ["--replica-id: String should match"])
            for name in ("pod 1", "größe", "a\n", "x" * 129)
        ),
        (["--model", "x", "--advertise-address", "here"], ["--advertise-address: String should"]),
        (["--model", "x", "--redis-url", "redis://h:x"], ["--redis-url: expected redis://"]),
        (["--model", "x", "--device", "tpu"], ["--device: Input should be 'auto', 'cpu' or"]),
        (["--model", "x", "--hash-secret-file", "/nowhere"], ["--hash-secret-file: cannot read"]),
    ],
)
def test_bad_values_end_the_start_with_a_line_each(
    flags: list[str], complaints: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(flags)
    except SystemExit as ended:
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == len(complaints)
    for line, complaint in zip(lines, complaints, strict=True):
        assert line.startswith("prefixlb replica:")
        assert complaint in line


def test_no_complaint_and_no_dump_shows_the_password_of_redis(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--model", "x", "--slots", "-7", "--redis-url", "http://me:hunter2@r"])
    complaints = capsys.readouterr().err
    assert "--redis-url" in complaints and "hunter2" not in complaints
    assert "got '-7'" in complaints
    settings = read_settings(["--model", "x", "--redis-url", "redis://me:hunter2@r"])
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize(
    "given",
    [
        ["threshold=3", "next_prompt_estimate=40"],
        ["threshold=3,next_prompt_estimate=40"],
        ['{"threshold": 3, "next_prompt_estimate": 40}'],
    ],
)
def test_options_of_the_eviction_policy_reach_both_cores(core: CoreName, given: list[str]) -> None:
    flags = [flag for value in given for flag in ("--eviction-options", value)]
    settings = read_settings(["--model", "x", "--eviction-policy", "tlru", *flags])
    make_tree(
        core,
        page_size=1,
        block_size=16,
        hash_key=bytes(16),
        model="m",
        policy=settings.eviction_policy,
        policy_options=settings.eviction_options,
    )
    assert settings.eviction_options == {"threshold": 3, "next_prompt_estimate": 40}


def test_the_cache_is_on_unless_disabled_and_prompts_go_shortest_first() -> None:
    usual = read_settings(["--model", "x"])
    assert (usual.disable_cache, usual.schedule_policy) == (False, "shortest")
    other = read_settings(["--model", "x", "--disable-cache", "--schedule-policy", "dfs-weight"])
    assert (other.disable_cache, other.schedule_policy) == (True, "dfs-weight")


def test_names_at_the_edge_of_what_is_allowed_are_taken() -> None:
    for name in ("x" * 128, "pod-1.replicas:30001/~!"):
        assert read_settings(["--model", "x", "--replica-id", name]).replica_id == name


def test_a_bad_value_in_the_environment_is_named_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPLICA_PORT", "70000")
    with pytest.raises(SystemExit):
        read_settings(["--model", "x"])
    assert "--port" in capsys.readouterr().err
