"""What an operator can set, by flag (--max-inflight 9) or environment (ROUTER_MAX_INFLIGHT=9)."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Addresses = Annotated[
    list[Annotated[str, Field(pattern=r"^\S+:\d+$")]], NoDecode, BeforeValidator(_split)
]
"""host:port, separated by commas."""


class RouterSettings(BaseSettings):
    """Settings of one router process."""

    model_config = SettingsConfigDict(
        env_prefix="ROUTER_",
        cli_kebab_case=True,
        cli_prog_name="prefixlb router",
        frozen=True,
        extra="forbid",
    )

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(30000, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    metrics_host: str = Field("127.0.0.1", description="address of the metrics page")
    metrics_port: int = Field(
        29000, ge=0, le=65535, description="port of the metrics page; 0 takes a free one"
    )
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        pattern=r"^(rediss?|unix)://",
        description="Redis that carries leases and deltas",
    )
    cluster: str = Field(
        "default", min_length=1, description="name in the keys, so that clusters can share a Redis"
    )
    replicas: Addresses = Field(
        [], description="host:port of every replica; empty: found by their leases in Redis"
    )
    policy: Literal["cost", "round_robin", "random", "least_load"] = Field(
        "cost", description="how a replica is picked"
    )
    k: float = Field(
        1.5, gt=0, allow_inf_nan=False, description="cost of an own uncached token, in tokens"
    )
    decode_weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="weight of decode pressure in the cost"
    )
    hash_secret_file: Path | None = Field(
        None, description="file with the cluster secret of the block hashes; the replicas' own"
    )
    retries: int = Field(
        2, ge=0, le=16, description="other replicas tried when one fails before it answers"
    )
    ready_timeout_s: float = Field(
        30.0, ge=0, description="seconds after which the router serves with mirrors still cold"
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="seconds that running requests get after SIGTERM"
    )
    max_inflight: int = Field(1024, ge=1, description="requests; above it: RESOURCE_EXHAUSTED")
    max_message_bytes: int = Field(
        16 * 2**20, ge=1024, description="largest message taken from clients and replicas"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log line that is written"
    )


def read_settings(arguments: list[str]) -> RouterSettings:
    """Settings from flags, then environment, then defaults.

    A bad value ends the process with code 2 and one line per problem on stderr.
    """
    try:
        return RouterSettings(_cli_parse_args=arguments)  # type: ignore[call-arg]
    except ValidationError as error:
        for problem in error.errors():
            name = str(problem["loc"][0]).replace("_", "-")
            flag = f"--{name}" if len(name) > 1 else f"-{name}"
            print(
                f"prefixlb router: {flag}: {problem['msg']}, got {problem['input']!r}",
                file=sys.stderr,
            )
    except SettingsError as error:
        print(f"prefixlb router: {error}", file=sys.stderr)
    sys.exit(2)
