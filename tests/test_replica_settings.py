"""Settings of a replica: flags, environment, and what is said about bad ones."""

from pathlib import Path

import pytest

from replica.__main__ import main
from replica.settings import read_settings


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
        ([], ["--model: Field required"]),
        (
            ["--model", "x", "--slots", "0", "--port", "many"],
            ["--port: Input should be a valid integer", "--slots: Input should be greater"],
        ),
        (["--model", "x", "--block-size", "24", "--page-size", "16"], ["24 is not a multiple"]),
        (["--model", "x", "--chunk-size", "8", "--page-size", "16"], ["chunk_size 8 is below"]),
        (["--model", "x", "--redis-url", "localhost"], ["--redis-url: expected redis://"]),
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
