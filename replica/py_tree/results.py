"""What the calls of the Python tree core return; `radix_rs/_native.pyi` says what it means."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    length: int
    node: int


@dataclass(frozen=True)
class Insert:
    prefix_length: int
    node: int
    duplicates: list[tuple[int, int]]


@dataclass(frozen=True)
class Admission:
    length: int
    node: int
    receipt: int


@dataclass(frozen=True)
class Checkpoint:
    length: int
    prefix_length: int
    node: int
    receipt: int
    freed: bytes


@dataclass(frozen=True)
class TreeStats:
    nodes: int
    tokens: int
    evictable: int
    protected: int
    locks: int
    evicted_total: int
