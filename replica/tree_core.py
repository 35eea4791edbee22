"""The interface of the replica's tree, and which of its two cores serves it."""

import logging
import platform
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from typing_extensions import Buffer

from replica.py_tree import PyTree
from replica.py_tree.chain import HASH_VERSION

log = logging.getLogger(__name__)

CoreName = Literal["auto", "rust", "python"]
PolicyName = Literal["lru", "lfu", "slru", "priority", "tlru", "fifo", "mru", "filo"]


class CoreUnavailable(Exception):
    """The core asked for cannot serve; the message says why."""


class Match(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def node(self) -> int: ...


class Admission(Match, Protocol):
    @property
    def receipt(self) -> int: ...


class Checkpoint(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def prefix_length(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def receipt(self) -> int: ...
    @property
    def freed(self) -> bytes: ...


class Deltas(Protocol):
    @property
    def events(self) -> bytes: ...
    @property
    def stored(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def digest(self) -> int: ...


class TreeStats(Protocol):
    @property
    def nodes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def evictable(self) -> int: ...
    @property
    def protected(self) -> int: ...
    @property
    def locks(self) -> int: ...
    @property
    def evicted_total(self) -> int: ...


class TreeCore(Protocol):
    """What a replica asks of its tree. Both cores do more: `radix_rs/_native.pyi` is the manual.

    `TreeError` is the error.
    """

    def find(
        self,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Match: ...
    def expected(
        self,
        id: int,
        tokens: Buffer,
        *,
        node: int = 0,
        length: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes: ...
    def parent(self, node: int) -> int | None: ...
    def unlock(self, receipt: int) -> None: ...
    def admit(
        self,
        tokens: Buffer,
        slots_out: Buffer,
        *,
        receipt: int | None = None,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Admission: ...
    def checkpoint(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> Checkpoint: ...
    def finish(
        self,
        tokens: Buffer,
        slots: Buffer,
        *,
        receipt: int,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        extra_key: str = "",
        cache_salt: str = "",
    ) -> bytes: ...
    def evict(self, num_tokens: int) -> bytes: ...
    def reset(self) -> bytes: ...
    def drain_deltas(self) -> Deltas | None: ...
    def snapshot(self, max_blocks: int = 65536) -> Iterator[bytes]: ...
    def stats(self) -> TreeStats: ...
    def check(self) -> None: ...


def make_tree(
    core: CoreName = "auto",
    *,
    page_size: int,
    block_size: int,
    hash_key: bytes,
    model: str,
    policy: PolicyName = "lru",
    policy_options: Mapping[str, float] | None = None,
    disabled: bool = False,
) -> TreeCore:
    """`auto` is the compiled core, or the Python one where that cannot serve; the log says why.

    CoreUnavailable if it is asked for by name and cannot. TreeError on what no core takes,
    ValueError on a `hash_key` that has not 16 bytes.
    """
    options = dict(policy_options or {})
    reason = "" if core == "python" else why_not_rust(options)
    if core == "rust" and reason:
        raise CoreUnavailable(f"tree core rust: {reason}")
    if core == "python" or reason:
        if reason:
            log.warning("the Python tree core serves why=%r", reason)
        return PyTree(
            page_size=page_size,
            block_size=block_size,
            hash_key=hash_key,
            model=model,
            policy=policy,
            policy_options=options,
            disabled=disabled,
        )
    from radix_rs import Tree

    return Tree(
        page_size=page_size,
        block_size=block_size,
        hash_key=hash_key,
        model=model,
        policy=policy,
        policy_options={option: int(value) for option, value in options.items()},
        disabled=disabled,
    )


def why_not_rust(policy_options: Mapping[str, float]) -> str:
    """Why the compiled core cannot serve; empty if it can."""
    interpreter = platform.python_implementation()
    if interpreter != "CPython":
        return f"unsupported platform: the extension is for CPython, this is {interpreter}"
    try:
        import radix_rs
    except ImportError as error:
        return f"the extension radix_rs does not load: {error}"
    if radix_rs.HASH_VERSION != HASH_VERSION:
        return f"the extension hashes by version {radix_rs.HASH_VERSION}, not {HASH_VERSION}"
    for option, value in policy_options.items():
        if not float(value).is_integer() or value >= 2**64:
            return f"unsupported option: {option} is {value}, the extension takes whole u64"
    return ""
