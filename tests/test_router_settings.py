"""Flags, environment, and what a bad value says."""

from pathlib import Path

import pytest

from proto.secret import read_hash_secret
from router import known_flags
from router.__main__ import main
from router.settings import RouterSettings, read_settings


def test_a_flag_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROUTER_PORT", "1234")
    monkeypatch.setenv("ROUTER_MAX_INFLIGHT", "7")
    settings = read_settings(
        ["--port", "4321", "--hash-secret-file", "/secret", "--uncached-weight", "2.5"]
    )
    assert (settings.port, settings.max_inflight, settings.retries) == (4321, 7, 2)
    assert (settings.hash_secret_file, settings.uncached_weight) == (Path("/secret"), 2.5)


@pytest.mark.parametrize(("theirs", "ours"), known_flags.OURS.items())
def test_a_flag_known_from_other_routers_is_ours(theirs: str, ours: str) -> None:
    value = "127.0.0.2" if ours.endswith("host") else "9"
    expected = read_settings([ours, value])
    assert expected != read_settings([])
    assert read_settings([theirs, value]) == read_settings([f"{theirs}={value}"]) == expected


STATIC = "--discovery=static"


@pytest.mark.parametrize(
    "flags",
    [["--static-replicas", "a:1,b:2"], ["--static-replicas=a:1", "--static-replicas=b:2"]],
)
def test_addresses_are_separated_by_commas(flags: list[str]) -> None:
    assert read_settings([STATIC, *flags]).static_replicas == ["a:1", "b:2"]


def test_addresses_in_the_environment_are_separated_by_commas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROUTER_STATIC_REPLICAS", "a:1, b:2")
    assert read_settings([STATIC]).static_replicas == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "70000"], "--port: Input should be less than or equal to 65535, got '70000'"),
        (["--port", "x"], "--port: Input should be a valid integer"),
        (["--policy", "best"], "--policy: Input should be 'cost'"),
        (["--uncached-weight", "0"], "--uncached-weight: Input should be greater than 0, got '0'"),
        (["--uncached-weight", "nan"], "--uncached-weight: Input should be"),
        (["--redis-url", "localhost"], "--redis-url: expected redis://"),
        (["--redis-url", "redis://h:x"], "--redis-url: expected redis://"),
        (["--max-inflight", "0"], "--max-inflight: Input should be greater than or equal to 1"),
        ([STATIC, "--static-replicas", "a"], "--static-replicas: String should match pattern"),
        ([STATIC], "--discovery static and --static-replicas need each other"),
        (["--static-replicas", "a:1"], "--discovery static and --static-replicas need each other"),
        (
            ["--discovery", "kubernetes"],
            "--discovery kubernetes and --kubernetes-service need each",
        ),
        (["--kubernetes-service", "a/b/c"], "--kubernetes-service: String should match pattern"),
        (
            ["--discovery", "dns"],
            "--discovery: Input should be 'redis', 'static' or 'kubernetes', got 'dns'",
        ),
        (["--hash-secret-file", "/nowhere"], "--hash-secret-file: cannot read the hash secret"),
        (["--unknown", "1"], "unrecognized arguments: --unknown"),
    ],
)
def test_a_bad_value_ends_with_code_2_and_a_line_that_says_what_was_wrong(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(flags)
    except SystemExit as end:
        code = end.code
    assert code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("url", ["http://u:s3cret@h:1", "redis://:s3cret@h:port", "s3cret"])
def test_a_password_in_the_url_of_redis_is_never_printed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--redis-url", url])
    errors = capsys.readouterr().err
    assert "--redis-url: expected" in errors
    assert "s3cret" not in errors


def test_every_problem_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--port", "-1", "--retries", "99"])
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_secret_is_the_same_with_and_without_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789abcdef\n")
    (tmp_path / "b").write_bytes(b"0123456789abcdef")
    secret = b"0123456789abcdef"
    assert read_hash_secret(tmp_path / "a") == read_hash_secret(tmp_path / "b") == secret
    assert read_hash_secret(None) == b""


@pytest.mark.parametrize(
    ("size", "told"), [(0, "has 0 bytes"), (15, "has 15 bytes"), (65537, "has more bytes")]
)
def test_a_secret_is_neither_guessed_nor_endless(tmp_path: Path, size: int, told: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * size)
    with pytest.raises(ValueError, match=f"{told}, expected 16 to 65536"):
        read_hash_secret(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(b"x" * 65536)
    assert len(read_hash_secret(tmp_path / "secret")) == 65536


def test_every_setting_says_what_it_is() -> None:
    for name, field in RouterSettings.model_fields.items():
        assert field.description, name
