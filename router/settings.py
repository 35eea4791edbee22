"""What an operator can set, by flag (--max-inflight 9) or environment (ROUTER_MAX_INFLIGHT=9)."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from proto import settings
from proto.logs import LogFormat
from proto.settings import RedisUrl, TracesEndpoint
from proto.tls_files import TlsFiles, check_pairs
from proto.tracing import read_tracing
from radix_rs import Rules
from router.known_flags import translated

USUAL = Rules()
"""Whose values are the defaults here."""

RULES = frozenset(
    {
        *("policy", "uncached_weight", "decode_weight", "cache_threshold", "load_factor"),
        *("balance_abs_threshold", "balance_rel_threshold"),
        *("breaker_failures", "breaker_window_s", "breaker_open_s", "breaker_max_open_s"),
    }
)
"""Settings that a router's rules are made of, which have the same names."""


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


SERVICE = r"(([a-z0-9-]+/)?[a-z0-9-]+)?"
"""NAME or NAMESPACE/NAME, or nothing."""

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

    settings_file: Path | None = Field(
        None,
        description="TOML file with settings that neither a flag nor the environment gives, such "
        "as max_inflight = 256; it is read again when it changes and on SIGHUP",
    )
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(30000, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    metrics_host: str = Field("127.0.0.1", description="address of the metrics page")
    metrics_port: int = Field(
        29000, ge=0, le=65535, description="port of the metrics page; 0 takes a free one"
    )
    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,  # may hold a password
        description="Redis that carries leases and deltas; rediss:// for TLS, "
        "redis+sentinel://HOST[,HOST...]/SERVICE by Sentinel",
    )
    cluster: str = Field(
        "default", min_length=1, description="name in the keys, so that clusters can share a Redis"
    )
    hash_secret_file: Path | None = Field(
        None, description="file with the cluster secret of the block hashes; the replicas' own"
    )
    discovery: Literal["redis", "static", "kubernetes"] = Field(
        "redis",
        description="how replicas are found: by their leases in Redis, by --static-replicas, or as "
        "endpoints of --kubernetes-service",
    )
    static_replicas: Addresses = Field(
        [], description="host:port of every replica, for --discovery static"
    )
    kubernetes_service: str = Field(
        "",
        pattern=f"^{SERVICE}$",
        description="Service of the replicas, NAME or NAMESPACE/NAME, for --discovery kubernetes",
    )
    kubernetes_port: str = Field(
        "grpc", min_length=1, description="name of that Service's port for gRPC"
    )
    tls_cert: Path | None = Field(
        None,
        description="certificate of this router, and those that lead to its authority, in PEM: "
        "clients are served over TLS alone",
    )
    tls_key: Path | None = Field(None, description="its key, in PEM, without a password")
    tls_client_ca: Path | None = Field(
        None, description="authorities in PEM; clients need a certificate of one of them"
    )
    auth_token_file: Path | None = Field(
        None,
        description="file of tokens, one a line: every call but a health check needs one, as "
        "'authorization: Bearer TOKEN'",
    )
    admin_token_file: Path | None = Field(
        None, description="the same for the admin service, instead of those; these open all"
    )
    ui_token_file: Path | None = Field(
        None,
        description="the same for the status page, /ui beside the metrics, which without it is "
        "open on a loopback address alone, and only while calls need no token or certificate",
    )
    replica_tls_ca: Path | None = Field(
        None,
        description="authorities in PEM: replicas are dialled over TLS, and need a certificate of "
        "one of them for the host of their address",
    )
    replica_tls_server_name: str = Field(
        "", description="name that the certificates of all replicas have, instead of that host"
    )
    replica_tls_cert: Path | None = Field(
        None, description="certificate to show to replicas, in PEM"
    )
    replica_tls_key: Path | None = Field(None, description="its key, in PEM, without a password")
    policy: Literal[
        "cost",
        "cache_aware",
        "consistent_hash",
        "power_of_two",
        "least_load",
        "round_robin",
        "random",
    ] = Field("cost", description="how a replica is picked; `prefixlb sim` compares them")
    uncached_weight: float = Field(
        USUAL.uncached_weight,
        gt=0,
        allow_inf_nan=False,
        description="k of the cost: weight of the tokens to compute",
    )
    decode_weight: float = Field(
        USUAL.decode_weight,
        ge=0,
        allow_inf_nan=False,
        description="weight of decode pressure in the cost",
    )
    cache_threshold: float = Field(
        USUAL.cache_threshold,
        ge=0,
        le=1,
        description="cache_aware: part of a prompt that must be cached for a replica to be "
        "picked for it",
    )
    balance_abs_threshold: int = Field(
        USUAL.balance_abs_threshold,
        ge=0,
        description="cache_aware: requests that one replica may have beyond another, else the "
        "least loaded is picked",
    )
    balance_rel_threshold: float = Field(
        USUAL.balance_rel_threshold,
        ge=1,
        allow_inf_nan=False,
        description="cache_aware: times as many requests that it may have; both must be exceeded",
    )
    load_factor: float = Field(
        USUAL.load_factor,
        ge=1,
        allow_inf_nan=False,
        description="consistent_hash: requests of a replica at most, over the mean of all",
    )
    index_max_bytes: int = Field(
        2**30,
        ge=2**20,
        description="bytes of memory for all mirrors together; over it they forget, "
        "least recently used first",
    )
    retries: int = Field(
        2, ge=0, le=16, description="other replicas tried when one fails before it answers"
    )
    retry_budget: float = Field(
        0.2, ge=0, le=1, description="retries at most, as a part of all requests"
    )
    breaker_failures: int = Field(
        USUAL.breaker_failures,
        ge=1,
        description="failed requests that open a replica's circuit breaker, if no more are "
        "answered: it is passed over where others are",
    )
    breaker_window_s: float = Field(
        USUAL.breaker_window_s,
        ge=0.001,
        allow_inf_nan=False,
        description="seconds for which a failure is counted",
    )
    breaker_open_s: float = Field(
        USUAL.breaker_open_s,
        ge=0.001,
        allow_inf_nan=False,
        description="seconds until one request tries again; twice as many after each that fails",
    )
    breaker_max_open_s: float = Field(
        USUAL.breaker_max_open_s,
        ge=0.001,
        allow_inf_nan=False,
        description="the most that these become",
    )
    ready_timeout_s: float = Field(
        30.0, ge=0, description="seconds after which the router serves with mirrors still cold"
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="seconds that running requests get after SIGTERM"
    )
    shards: int = Field(
        min(2, os.cpu_count() or 1), ge=1, le=256, description="threads of the data plane"
    )
    max_inflight: int = Field(1024, ge=1, description="requests at once; above it they wait")
    queue_size: int = Field(
        100, ge=0, description="requests that may wait; above it: RESOURCE_EXHAUSTED"
    )
    queue_timeout_s: float = Field(60.0, gt=0, description="seconds a request may wait for that")
    max_held_bytes: int = Field(
        2**30,
        ge=2**26,
        description="bytes of memory for requests not answered yet; above it: RESOURCE_EXHAUSTED",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="connections of clients; beyond it the one that rested longest is closed",
    )
    write_stall_s: float = Field(
        60.0, gt=0, description="seconds an answer may wait for its client to read on"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log line that is written"
    )
    log_format: LogFormat = Field(
        "text", description="a log line: text, or a JSON object for what collects logs"
    )
    otlp_traces_endpoint: TracesEndpoint = ""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, settings.SettingsFile(settings_cls)

    @property
    def rules(self) -> Rules:
        """By what replicas are picked."""
        return Rules(**{name: getattr(self, name) for name in RULES})

    @model_validator(mode="after")
    def _opens_in_order(self) -> Self:
        if self.breaker_max_open_s < self.breaker_open_s:
            raise ValueError("--breaker-max-open-s must not be less than --breaker-open-s")
        return self

    @model_validator(mode="after")
    def _traces_as_can_be_done(self) -> Self:
        if self.otlp_traces_endpoint:  # what the environment alone asks for stops nobody
            read_tracing(self.otlp_traces_endpoint)
        return self

    @property
    def client_tls_files(self) -> TlsFiles:
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def replica_tls_files(self) -> TlsFiles:
        return TlsFiles(self.replica_tls_cert, self.replica_tls_key, self.replica_tls_ca)

    @model_validator(mode="after")
    def _has_what_tls_needs(self) -> Self:
        check_pairs(
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            replica_tls_cert=self.replica_tls_cert,
            replica_tls_key=self.replica_tls_key,
        )
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca needs --tls-cert")
        if (self.replica_tls_cert or self.replica_tls_server_name) and not self.replica_tls_ca:
            raise ValueError(
                "--replica-tls-cert and --replica-tls-server-name need --replica-tls-ca"
            )
        return self

    @model_validator(mode="after")
    def _says_where_replicas_are(self) -> Self:
        if (self.discovery == "static") != bool(self.static_replicas):
            raise ValueError("--discovery static and --static-replicas need each other")
        if (self.discovery == "kubernetes") != bool(self.kubernetes_service):
            raise ValueError("--discovery kubernetes and --kubernetes-service need each other")
        return self


POLICIES: tuple[str, ...] = get_args(RouterSettings.model_fields["policy"].annotation)
"""All that `policy` may be."""

SECTIONS = {
    "settings_file": "where settings come from",
    "host": "where it listens",
    "redis_url": "its cluster",
    "tls_cert": "who may connect, and how it connects to replicas",
    "policy": "how it routes",
    "ready_timeout_s": "start and end",
    "max_inflight": "limits, logs and traces",
}
"""Headings of --help, each by the first setting under it."""

EXAMPLES = """
prefixlb router --redis-url redis://10.0.0.5:6379/0 --hash-secret-file secret --host 0.0.0.0
ROUTER_MAX_INFLIGHT=256 prefixlb router --policy round_robin
prefixlb router --discovery kubernetes --kubernetes-service llm/replicas
prefixlb router --discovery static --static-replicas 10.0.0.7:30001,10.0.0.8:30001
prefixlb router --max-concurrent-requests 256 --prometheus-port 29100
"""


def read_settings(arguments: list[str]) -> RouterSettings:
    """Settings from flags, then environment, then defaults; a bad value ends the process."""
    given = translated(arguments)
    return settings.read_settings(RouterSettings, given, sections=SECTIONS, examples=EXAMPLES)


def parse_settings(arguments: list[str]) -> RouterSettings:
    """The same for a process that goes on. Raises BadSettings."""
    given = translated(arguments)
    return settings.parse_settings(RouterSettings, given, sections=SECTIONS, examples=EXAMPLES)
