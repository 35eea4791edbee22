"""How a process reads its settings: flags, then environment, then defaults; and what --help says.

Metavars follow from a setting's name and type, so that units are shown where names carry them.
"""

import os
import sys
import textwrap
import tomllib
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from proto.redis_client import checked_redis_url
from proto.unknown_flags import parse_all

Settings = TypeVar("Settings", bound=BaseSettings)

RedisUrl = Annotated[str, AfterValidator(checked_redis_url)]

TracesEndpoint = Annotated[
    str,
    Field(
        pattern=r"^((https?|grpc)://\S+)?$",
        description="collector of OpenTelemetry that traces are sent to by OTLP over gRPC, such as "
        "http://127.0.0.1:4317, https:// for TLS; default: OTEL_EXPORTER_OTLP_ENDPOINT, else none "
        "are. OTEL_TRACES_SAMPLER says of which requests",
    ),
]

METAVARS_BY_ENDING = {
    "_s": "SECONDS",
    "_bytes": "BYTES",
    "port": "PORT",
    "host": "HOST",
    "_address": "HOST:PORT",
    "_replicas": "HOST:PORT,...",
    "_url": "URL",
    "_endpoint": "URL",
    "_file": "FILE",
    "_cert": "FILE",
    "_key": "FILE",
    "_ca": "FILE",
    "_server_name": "NAME",
}
METAVARS_BY_TYPE: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
HELP_COLUMNS = 70


class BadSettings(ValueError):
    """What is wrong with settings, one sentence a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class SettingsFile(PydanticBaseSettingsSource):
    """Settings from the TOML file that a flag or the environment names as `settings_file`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # the file is read as a whole

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("settings_file")
        if not path:
            return {}
        try:
            with Path(path).open("rb") as file:
                return tomllib.load(file)
        except (OSError, ValueError) as error:
            raise SettingsError(f"--settings-file: cannot read {path}: {error}") from error


def read_settings(
    kind: type[Settings],
    arguments: list[str],
    *,
    sections: Mapping[str, str],
    examples: str,
) -> Settings:
    """The settings of this process.

    `sections` names headings of the help, each by the first setting under it. A bad value ends
    the process with code 2 and one line per problem on stderr.
    """
    try:
        return parse_settings(kind, arguments, sections=sections, examples=examples)
    except BadSettings as error:
        program = kind.model_config.get("cli_prog_name")
        for problem in error.problems:
            print(f"{program}: {problem}", file=sys.stderr)
        sys.exit(2)


def parse_settings(
    kind: type[Settings],
    arguments: list[str],
    *,
    sections: Mapping[str, str],
    examples: str,
) -> Settings:
    """As `read_settings`, but for a process that goes on: raises BadSettings."""
    program = str(kind.model_config.get("cli_prog_name"))
    parser = ArgumentParser(
        prog=program,
        usage=f"{program} [--flag VALUE ...]",
        allow_abbrev=False,
        description=f"{kind.__doc__} Flags go before the environment, and that before defaults.",
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}",
        formatter_class=lambda prog: RawTextHelpFormatter(prog, max_help_position=30),
    )
    context: Any = parser

    def add_argument(_: ArgumentParser, *flags: str, **options: Any) -> None:
        nonlocal context
        name = flags[0].removeprefix("--").replace("-", "_")
        if name in sections:
            context = parser.add_argument_group(sections[name])
        field = kind.model_fields[name]
        options |= {"metavar": metavar(name, field), "help": described(kind, name, field)}
        context.add_argument(*flags, **options)

    source: CliSettingsSource[Any] = CliSettingsSource(
        kind,
        root_parser=parser,
        add_argument_method=add_argument,
        parse_args_method=parse_all,
    )
    try:
        return kind(_cli_settings_source=source(args=arguments))
    except ValidationError as error:
        given = {argument.partition("=")[0] for argument in arguments}
        raise BadSettings([_told(problem, kind, given) for problem in error.errors()]) from error
    except SettingsError as error:
        raise BadSettings([str(error)]) from error


def metavar(name: str, field: FieldInfo) -> str:
    """What stands for a value in the help."""
    if get_origin(field.annotation) is Literal:
        return "{" + ",".join(get_args(field.annotation)) + "}"
    for ending, shown in METAVARS_BY_ENDING.items():
        if name.endswith(ending):
            return shown
    kinds = [part for part in get_args(field.annotation) if part is not NoneType]
    return METAVARS_BY_TYPE.get(kinds[0] if kinds else field.annotation, "TEXT")


def described(kind: type[BaseSettings], name: str, field: FieldInfo) -> str:
    """What it is, its default and its environment variable."""
    value = field.default
    if field.is_required():
        facts = "required, "
    elif value in (None, "", []):
        facts = ""
    else:
        facts = f"default {value:g}, " if isinstance(value, float) else f"default {value}, "
    text = textwrap.fill(field.description or "", HELP_COLUMNS, break_on_hyphens=False)
    return f"{text}\n[{facts}env {_variable(kind, name)}]".replace("%", "%%")


def _variable(kind: type[BaseSettings], name: str) -> str:
    return f"{kind.model_config.get('env_prefix', '')}{name}".upper()


def _told(problem: ErrorDetails, kind: type[BaseSettings], given: set[str]) -> str:
    said = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return said  # of several settings together
    name = str(problem["loc"][0])
    flag, variable = f"--{name.replace('_', '-')}", _variable(kind, name)
    field = kind.model_fields.get(name)
    if field is not None and problem["type"] == "missing":
        return f"{flag} is required: {field.description}"
    secret = field is not None and not field.repr
    got = "" if secret else f", got {problem['input']!r}"
    source = f" from {variable}" if flag not in given and variable in os.environ else ""
    return f"{flag}: {said}{got}{source}"
