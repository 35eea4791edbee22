"""proto/settings.py: the help of both processes, which follows from their settings."""

import re
import shlex

import pytest
from pydantic_settings import BaseSettings

import replica.settings
import router.settings
from replica.settings import ReplicaSettings
from router.settings import RouterSettings

PROCESSES = [(router.settings, RouterSettings), (replica.settings, ReplicaSettings)]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def help_of(module: object, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        module.read_settings(["--help"])  # type: ignore[attr-defined]
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("module", "kind"), PROCESSES)
def test_help_names_flag_default_and_environment_variable_of_every_setting(
    module: object, kind: type[BaseSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(module, capsys)
    entries = {part.split()[0].rstrip(","): part for part in shown.split("\n  --")[1:]}
    assert len(entries) == len(kind.model_fields)
    for name, field in kind.model_fields.items():
        entry = entries[name.replace("_", "-")]
        assert f"env {kind.model_config['env_prefix']}{name.upper()}]" in entry
        if field.is_required():
            assert "[required, " in entry
        elif field.default not in (None, "", []):
            assert f"[default {field.default}".removesuffix(".0") in entry


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("module", "kind"), PROCESSES)
def test_help_speaks_of_values_rather_than_of_types(
    module: object, kind: type[BaseSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(module, capsys)
    assert not re.search(r"--[a-z-]+ (str|int|float|list|\{Path)", shown) and "null" not in shown
    assert "--drain-timeout-s SECONDS" in shown and "--hash-secret-file FILE" in shown


@pytest.mark.parametrize(("module", "kind"), PROCESSES)
def test_every_section_of_the_help_begins_at_a_setting(
    module: object, kind: type[BaseSettings]
) -> None:
    sections = module.SECTIONS  # type: ignore[attr-defined]
    assert set(sections) <= set(kind.model_fields)
    assert next(iter(kind.model_fields)) in sections


@pytest.mark.parametrize(("module", "kind"), PROCESSES)
def test_examples_of_the_help_are_taken_as_they_stand(
    module: object, kind: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in module.EXAMPLES.strip().splitlines():  # type: ignore[attr-defined]
        words = shlex.split(line)
        with monkeypatch.context() as environment:
            while "=" in words[0]:
                environment.setenv(*words.pop(0).split("=", 1))
            assert words[:2] == shlex.split(str(kind.model_config["cli_prog_name"]))
            assert module.read_settings(words[2:])  # type: ignore[attr-defined]


def test_a_bad_value_of_the_environment_is_told_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTER_PORT", "70000")
    with pytest.raises(SystemExit):
        router.settings.read_settings([])
    assert capsys.readouterr().err.endswith("got '70000' from ROUTER_PORT\n")
    with pytest.raises(SystemExit):
        router.settings.read_settings(["--port=-1"])
    assert capsys.readouterr().err.endswith("got '-1'\n")
