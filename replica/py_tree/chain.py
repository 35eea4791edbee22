"""The chain hash of blocks, as `radix_rs` computes it, in plain Python.

`h(0)` hashes the namespace with SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input
PRF", 2012). Blocks are taken in groups: of a group's anchor, the hash before it, and of its token
ids up to the end of a block NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999)
leaves 128 bits, and half of what AES makes of those is that block's hash. All keys follow from the
cluster's. A replica has version, key and key check from here, whichever core its tree has.
"""

import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from replica.py_tree import aes

HASH_VERSION = 3
"""Names this chain hash; peers with another version cannot share deltas."""

_MASK = 2**64 - 1
_STRETCH = 16
"""Tokens that NH takes at once."""
_GROUP = 8
"""Stretches for which NH has a key."""


def derive_hash_key(secret: bytes) -> bytes:
    """The cluster's key, 16 bytes: the first half of SHA-256("prefixlb-hash-v1" || secret)."""
    return hashlib.sha256(b"prefixlb-hash-v1" + secret).digest()[:16]


def whole_key(hash_key: bytes) -> bytes:
    """The key itself; ValueError if it has not 16 bytes."""
    if len(hash_key) != 16:
        raise ValueError(f"hash_key: expected 16 bytes, got {len(hash_key)}")
    return hash_key


def key_check(hash_key: bytes) -> int:
    """Tells whether two processes have the same key, and nothing else about it."""
    return namespace_seed(whole_key(hash_key), "prefixlb-key-check", "", "")


def namespace_seed(key: bytes, model: str, extra_key: str, cache_salt: str) -> int:
    """`h(0)`: the length (u32, little-endian) and bytes of each field in turn."""
    fields = [field.encode() for field in (model, extra_key, cache_salt)]
    return _nonzero(siphash_1_3(key, b"".join(struct.pack("<I", len(f)) + f for f in fields)))


def blocks_in_group(block_size: int) -> int:
    """In a group all hashes follow from the last one before it."""
    return max(1, _GROUP // -(-block_size // _STRETCH))


def extend_chain(
    key: bytes, anchor: int, tokens: npt.NDArray[np.uint32], block_size: int
) -> list[int]:
    """Of the whole blocks of `tokens`, which begin a group; `anchor` is the hash before it."""
    hashes: list[int] = []
    of_group = block_size * blocks_in_group(block_size)
    whole = len(tokens) // block_size * block_size
    for start in range(0, whole, of_group):
        hashes += _hash_group(key, anchor, tokens[start : min(start + of_group, whole)], block_size)
        anchor = hashes[-1]
    return hashes


def _hash_group(
    key: bytes, anchor: int, tokens: npt.NDArray[np.uint32], block_size: int
) -> list[int]:
    keys = _block_keys(key)
    hashes = []
    total, stretches = keys.begin(anchor), 0
    for start in range(0, len(tokens), block_size):
        block = tokens[start : start + block_size].astype("<u4").tobytes()
        for at in range(0, len(block), 4 * _STRETCH):
            if stretches == _GROUP:  # within a block longer than a group
                total, stretches = keys.begin(keys.hash(total)), 0
            total += _nh(keys.nh[stretches], block[at : at + 4 * _STRETCH])
            stretches += 1
        hashes.append(keys.hash(total))
    return hashes


@dataclass(frozen=True)
class _Keys:
    nh: list[tuple[int, ...]]
    anchor: tuple[int, int]
    aes: list[int]

    def begin(self, anchor: int) -> int:
        """NH of what stands before a group."""
        added, factor = self.anchor
        return ((anchor + added) & _MASK) * factor

    def hash(self, total: int) -> int:
        """The first half of AES of it, mod 2^128."""
        encrypted = aes.encrypt(self.aes, (total % 2**128).to_bytes(16, "little"))
        return _nonzero(int.from_bytes(encrypted[:8], "little"))


@lru_cache(maxsize=8)
def _block_keys(key: bytes) -> _Keys:
    """SHA-256 of the key and a byte: of 0 to 15, those of NH; of 16, those of anchor and AES."""
    parts = [hashlib.sha256(key + bytes([part])).digest() for part in range(17)]
    words = struct.unpack("<64Q", b"".join(parts[:16]))
    return _Keys(
        nh=[words[start : start + 8] for start in range(0, 64, 8)],
        anchor=struct.unpack("<2Q", parts[16][:16]),
        aes=aes.round_keys(parts[16][16:]),
    )


def _nh(key: tuple[int, ...], stretch: bytes) -> int:
    """Of up to 16 tokens, zeros for those that are missing."""
    words: tuple[int, ...] = struct.unpack("<8Q", stretch.ljust(64, b"\0"))
    sums = [(word + part) & _MASK for word, part in zip(words, key, strict=True)]
    return sum(a * b for a, b in zip(sums[::2], sums[1::2], strict=True))


def siphash_1_3(key: bytes, data: bytes) -> int:
    """`key` has 16 bytes."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    state = (
        k0 ^ 0x736F_6D65_7073_6575,
        k1 ^ 0x646F_7261_6E64_6F6D,
        k0 ^ 0x6C79_6765_6E65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    )
    # The last word holds the bytes left over and, in its top byte, the length.
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    words: tuple[int, ...] = struct.unpack(f"<{len(padded) // 8}Q", padded)
    for word in words:
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
        state = v0 ^ word, v1, v2, v3
    v0, v1, v2, v3 = state
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _nonzero(value: int) -> int:
    """0 stands for "no parent" in deltas."""
    return max(value, 1)
