"""The chain hash of blocks, as `radix_rs` computes it, in plain Python.

`h(0)` hashes the namespace with SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input
PRF", 2012), `h(i)` hashes with it what NH (Black et al., "UMAC: Fast and Secure Message
Authentication", 1999) leaves of the i-th block's token ids, and `h(i-1)`. All keys follow from the
cluster's. A replica has version, key and key check from here, whichever core its tree has.
"""

import hashlib
import struct
from functools import lru_cache

HASH_VERSION = 2
"""Names this chain hash; peers with another version cannot share deltas."""

_MASK = 2**64 - 1


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


def next_hash(key: bytes, previous: int, block: bytes) -> int:
    """`h(i)` from `h(i-1)` and the block's token ids as little-endian u32."""
    nh_key, link_key = _block_keys(key)
    stretches = [block[start : start + 64] for start in range(0, len(block), 64)]
    shrunk = b"".join(_nh(nh_key, stretch).to_bytes(16, "little") for stretch in stretches)
    return _nonzero(siphash_1_3(link_key, shrunk + struct.pack("<Q", previous)))


@lru_cache(maxsize=8)
def _block_keys(key: bytes) -> tuple[tuple[int, ...], bytes]:
    """Those of NH and of the link: SHA-256 of the key and a byte 0, 1 and 2."""
    first, second, third = (hashlib.sha256(key + bytes([part])).digest() for part in range(3))
    return struct.unpack("<8Q", first + second), third[:16]


def _nh(key: tuple[int, ...], stretch: bytes) -> int:
    """128 bits of up to 16 tokens, zeros for those that are missing."""
    words: tuple[int, ...] = struct.unpack("<8Q", stretch.ljust(64, b"\0"))
    sums = [(word + part) & _MASK for word, part in zip(words, key, strict=True)]
    products = (a * b for a, b in zip(sums[::2], sums[1::2], strict=True))
    return sum(products) % 2**128


def mix(value: int) -> int:
    """What a block adds to a digest: the 64-bit finaliser of MurmurHash3."""
    value = (value ^ (value >> 33)) * 0xFF51_AFD7_ED55_8CCD & _MASK
    value = (value ^ (value >> 33)) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return value ^ (value >> 33)


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
