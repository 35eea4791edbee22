"""The trees and the pick: what is compiled, under its public names."""

from ._native import (
    HASH_VERSION,
    Applied,
    Candidate,
    Deltas,
    Insert,
    Load,
    Match,
    Mirror,
    Pick,
    Router,
    RouterError,
    Tree,
    TreeError,
    TreeStats,
    chain_hashes,
    derive_hash_key,
)

__all__ = [
    "HASH_VERSION",
    "Applied",
    "Candidate",
    "Deltas",
    "Insert",
    "Load",
    "Match",
    "Mirror",
    "Pick",
    "Router",
    "RouterError",
    "Tree",
    "TreeError",
    "TreeStats",
    "chain_hashes",
    "derive_hash_key",
]
