"""Whether requests are traced, and which: what flag and OpenTelemetry's environment say.

Knows no package of OpenTelemetry, so that a process without traces needs none.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from proto.errors import InvalidFile
from proto.spans import Take

if TYPE_CHECKING:
    from proto.span_export import SpanExport

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
LIMIT = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
"""The one limit that OpenTelemetry reads whoever makes the spans."""

SAMPLER, RATIO = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"

SEPARATOR = re.compile(r"[ \t]*,[ \t]*")
HEADER = re.compile(r'([\w.-]+)[ \t]*=([^",;\\]*)', re.ASCII)

PARENT_BASED = "parentbased_"
SAMPLERS = ("always_on", "always_off", "traceidratio")

ALL_IDS = 1 << 64
"""A ratio is one of the low 64 bits of a trace's id, as in OpenTelemetry's own samplers."""


@dataclass(frozen=True)
class Sampling:
    """Which requests are traced."""

    follows_parent: bool
    """What is part of a trace already is traced if the caller's span is."""
    ids_below: int
    """All others are if the low 64 bits of their trace's id are less."""

    def takes(self, trace_id: int, parent_is_sampled: bool | None) -> bool:
        """`parent_is_sampled`: None of what is part of no trace yet."""
        if self.follows_parent and parent_is_sampled is not None:
            return parent_is_sampled
        return trace_id % ALL_IDS < self.ids_below


@dataclass(frozen=True)
class Tracing:
    """Where spans go, and of which requests."""

    endpoint: str
    sampling: Sampling

    def export(self, take: Take, *, service: str, instance: str) -> "SpanExport":
        """Sends what `take` gives, while it runs. `service`, `instance`: unless the environment
        says otherwise.

        Raises InvalidFile if that cannot be.
        """
        from proto.span_export import span_export

        return span_export(self.endpoint, take, service=service, instance=instance)


def read_tracing(endpoint: str, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """None: nothing is traced. `endpoint`: of the flag, before what the environment says.

    Raises ValueError if the environment wants what there is not here.
    """
    said = [endpoint, *(environment.get(name, "") for name in ENDPOINTS)]
    wanted = next(filter(None, said), "")
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not wanted or is_off or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if not _is_address(wanted):
        # Not the value, which may hold a password.
        raise ValueError("expected HOST or http://HOST[:PORT], with a port from 1 to 65535")
    for name in PROTOCOLS:
        if (protocol := environment.get(name) or "grpc") != "grpc":
            raise ValueError(f"{name} is {protocol}, but spans are sent by grpc alone")
    _check_headers(environment)
    limit = environment.get(LIMIT, "").strip()
    if limit and not limit.isdecimal():
        raise ValueError(f"{LIMIT} is {limit}, but must be a whole number of 0 or more")
    return Tracing(wanted, _sampling(environment))


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        return bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:  # no port, or no IPv6 address
        return False


def _check_headers(environment: Mapping[str, str]) -> None:
    """OpenTelemetry leaves out what it cannot read and quotes it in the log: a token, mostly."""
    name = next((name for name in HEADERS if environment.get(name)), HEADERS[-1])
    for number, header in enumerate(SEPARATOR.split(environment.get(name, "")), 1):
        if header and not _is_header(header.strip()):
            raise ValueError(
                f"{name}: header {number} is not NAME=VALUE, with a name of letters, digits, - _ . "
                'that does not end in -bin, and a value in ASCII, of which " , ; \\ are encoded as '
                "%22 %2C %3B %5C"
            )


def _is_header(header: str) -> bool:
    """Whether OpenTelemetry reads it as one, and gRPC sends it."""
    if (known := HEADER.fullmatch(header)) is None:
        return False
    name, value = known[1], known[2].strip(" \t")
    sent = value if " " in value else unquote(value)
    return sent.isascii() and sent.isprintable() and not name.lower().endswith("-bin")


def find_tracing(endpoint: str, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """What `read_tracing` reads, if it can be done here.

    The environment may be meant for other programs: what it alone asks for and cannot be had is a
    warning. Raises InvalidFile if it is `endpoint`, the flag's, that cannot be served.
    """
    try:
        tracing = read_tracing(endpoint, environment)
        if tracing:
            _try(tracing.endpoint)
    except (ValueError, InvalidFile) as error:
        if endpoint:
            raise InvalidFile(f"--otlp-traces-endpoint: {error}") from error
        asked_by = next(name for name in ENDPOINTS if environment.get(name))
        log.warning("no traces are sent asked_by=%s why=%r", asked_by, str(error))
        return None
    return tracing


def _try(endpoint: str) -> None:
    try:
        from proto.span_export import exporter_to
    except ImportError as error:
        raise InvalidFile(f"{error}; pip install 'prefixlb[traces]' brings it") from error
    exporter_to(endpoint).shutdown()


def _sampling(environment: Mapping[str, str]) -> Sampling:
    name = environment.get(SAMPLER) or PARENT_BASED + "always_on"
    root = name.removeprefix(PARENT_BASED)
    if root not in SAMPLERS:
        known = ", ".join(prefix + each for prefix in ("", PARENT_BASED) for each in SAMPLERS)
        raise ValueError(f"{SAMPLER} is {name}, but only these are known: {known}")
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(root)
    if ratio is None:
        ratio = _ratio(environment.get(RATIO) or "1")
    return Sampling(name != root, round(ratio * ALL_IDS))


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ValueError(f"{RATIO} is {text}, but must be a number from 0 to 1")
    return ratio
