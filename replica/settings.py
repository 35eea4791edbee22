"""What an operator can set: by flag (--slots 4096) or environment (REPLICA_SLOTS=4096)."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, CliImplicitFlag, SettingsConfigDict

from proto import settings
from proto.logs import LogFormat
from proto.settings import RedisUrl, TracesEndpoint
from proto.tls_files import TlsFiles, check_pairs
from proto.tracing import read_tracing
from replica.py_tree.policy import make_policy
from replica.tree_core import CoreName, PolicyName
from replica.tree_error import TreeError


class ReplicaSettings(BaseSettings):
    """One replica of prefixlb: a model, its KV slots and the tree of what they hold."""

    model_config = SettingsConfigDict(
        env_prefix="REPLICA_",
        cli_prog_name="prefixlb replica",
        cli_kebab_case=True,
        frozen=True,
        extra="forbid",
    )

    model: Path = Field(
        description="GGUF file or Hugging Face directory with safetensors; "
        '--model "$(prefixlb model)" serves the small one of the demo'
    )
    model_id: str = Field("", description="name clients ask for; default: the model's own")
    replica_id: str = Field(
        "",
        pattern=r"^[!-~]{0,128}$",  # it becomes gRPC metadata and part of Redis keys
        description="stable name, such as a pod's: at most 128 characters of printable ASCII "
        "without spaces; default: the address that routers use",
    )
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(30001, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    advertise_address: str = Field(
        "",
        pattern=r"^([!-~]+:\d+)?$",
        description="host:port at which routers reach this replica; default: HOST:PORT",
    )
    metrics_host: str = Field("127.0.0.1", description="address of the metrics page")
    metrics_port: int = Field(
        29001, ge=0, le=65535, description="port of the metrics page; 0 takes a free one"
    )
    redis_url: RedisUrl | None = Field(
        None,
        repr=False,  # may hold a password
        description="Redis that carries leases and deltas; rediss:// for TLS, "
        "redis+sentinel://HOST[,HOST...]/SERVICE by Sentinel; "
        "unset: works alone, publishes nothing",
    )
    cluster: str = Field(
        "default", min_length=1, description="name in the keys, so that clusters can share a Redis"
    )
    hash_secret_file: Path | None = Field(
        None, description="file with the cluster secret of the block hashes; the routers' own"
    )
    tls_cert: Path | None = Field(
        None,
        description="certificate of this replica, and those that lead to its authority, in PEM: "
        "it is served over TLS alone",
    )
    tls_key: Path | None = Field(None, description="its key, in PEM, without a password")
    tls_client_ca: Path | None = Field(
        None, description="authorities in PEM; who connects needs a certificate of one of them"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if there is one")
    threads: int = Field(0, ge=0, description="CPU threads of the model; 0: one a core")
    slots: int = Field(32_768, ge=1, description="KV slots: tokens the cache and requests can hold")
    page_size: int = Field(1, ge=1, description="tokens the tree stores and reuses as one")
    block_size: int = Field(16, ge=1, description="tokens in a block of the delta stream")
    eviction_policy: PolicyName = Field("lru", description="which cached tokens are evicted first")
    eviction_options: dict[str, float] = Field(
        {},
        description="of the eviction policy: slru has threshold=2 (hits of what is kept longer), "
        "tlru has threshold=0 and next_prompt_estimate=0 (tokens); written NAME=VALUE or as JSON",
    )
    disable_cache: CliImplicitFlag[bool] = Field(
        False, description="reuse nothing: every prompt is computed from its start"
    )
    schedule_policy: Literal["shortest", "fcfs", "lpm", "dfs-weight"] = Field(
        "shortest",
        description="whose prompt is computed next. shortest: least left to compute, less what "
        "was waited; fcfs: in order of arrival; lpm: longest cached prefix, and as fcfs if more "
        "than 128 wait; dfs-weight: together who shares a prefix, most first",
    )
    tree_core: CoreName = Field(
        "auto", description="auto: the compiled tree, or the Python one where that cannot serve"
    )
    chunk_size: int = Field(512, ge=1, description="prompt tokens computed in one step at most")
    max_running: int = Field(64, ge=1, description="requests computed side by side at most")
    max_waiting: int = Field(
        1024, ge=1, description="requests without a first token; above it: RESOURCE_EXHAUSTED"
    )
    max_backlog_bytes: int = Field(
        16 << 20, ge=1, description="deltas kept while Redis is away; above it they are dropped"
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="seconds that running requests get after SIGTERM"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log line that is written"
    )
    log_format: LogFormat = Field(
        "text", description="a log line: text, or a JSON object for what collects logs"
    )
    otlp_traces_endpoint: TracesEndpoint = ""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.block_size % self.page_size:
            raise ValueError(
                f"block_size {self.block_size} is not a multiple of page_size {self.page_size}"
            )
        if self.chunk_size < self.page_size:
            raise ValueError(f"chunk_size {self.chunk_size} is below page_size {self.page_size}")
        return self

    @model_validator(mode="after")
    def _eviction_policy_has_its_options(self) -> Self:
        try:
            make_policy(self.eviction_policy, self.eviction_options)
        except TreeError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _traces_as_can_be_done(self) -> Self:
        if self.otlp_traces_endpoint:  # what the environment alone asks for stops nobody
            read_tracing(self.otlp_traces_endpoint)
        return self

    @property
    def tls_files(self) -> TlsFiles:
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @model_validator(mode="after")
    def _has_what_tls_needs(self) -> Self:
        check_pairs(tls_cert=self.tls_cert, tls_key=self.tls_key)
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca needs --tls-cert")
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.redis_url and self.host in ("0.0.0.0", "[::]") and not self.advertise_address:
            raise ValueError(
                f"host {self.host} is no address that routers can reach: set advertise_address"
            )
        return self


SECTIONS = {
    "model": "model and name",
    "host": "where it listens",
    "redis_url": "its cluster",
    "tls_cert": "who may connect",
    "device": "model execution",
    "slots": "the cache",
    "chunk_size": "the scheduler",
    "max_backlog_bytes": "limits, end, logs and traces",
}
"""Headings of --help, each by the first setting under it."""

EXAMPLES = """
prefixlb replica --model "$(prefixlb model)"
prefixlb replica --model /models/SmolLM2-360M-Instruct --slots 65536 --device cuda
REPLICA_HASH_SECRET_FILE=secret prefixlb replica --model m.gguf --redis-url redis://10.0.0.5
"""


def read_settings(arguments: list[str]) -> ReplicaSettings:
    """Settings from flags, then environment, then defaults; a bad value ends the process."""
    return settings.read_settings(ReplicaSettings, arguments, sections=SECTIONS, examples=EXAMPLES)
