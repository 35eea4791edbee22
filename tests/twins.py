"""Slow, plain twins of compiled parts: the chain hash and a replica's blocks."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from proto.prefixlb.v1.delta_pb2 import DeltaEvent, Removed, Stored

MASK = 2**64 - 1


def hash_key(secret: bytes) -> bytes:
    return hashlib.sha256(b"prefixlb-hash-v1" + secret).digest()[:16]


def siphash13(key: bytes, data: bytes) -> int:
    """SipHash with one compression and three finalisation rounds."""
    k0, k1 = (int.from_bytes(part, "little") for part in (key[:8], key[8:]))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    tail = len(data) % 8
    padded = data + bytes(7 - tail) + bytes([len(data) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        _sip_round(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        _sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def _sip_round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & MASK
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[0] = _rotate(v[0], 32)
    v[2] = (v[2] + v[3]) & MASK
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & MASK
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & MASK
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[2] = _rotate(v[2], 32)


def namespace_seed(hash_key: bytes, model: str, extra_key: str, cache_salt: str) -> int:
    fields = [text.encode() for text in (model, extra_key, cache_salt)]
    return max(1, siphash13(hash_key, b"".join(len(f).to_bytes(4, "little") + f for f in fields)))


def chain_hashes(
    tokens: Sequence[int],
    *,
    hash_key: bytes,
    model: str,
    block_size: int,
    extra_key: str = "",
    cache_salt: str = "",
) -> list[int]:
    parts = [hashlib.sha256(hash_key + bytes([number])).digest() for number in range(17)]
    nh_key, last = b"".join(parts[:16]), parts[16]
    aes = Cipher(algorithms.AES(last[16:]), modes.ECB()).encryptor()
    anchor = namespace_seed(hash_key, model, extra_key, cache_salt)
    of_block = -(-block_size // 16)
    hashes: list[int] = []
    for number in range(len(tokens) // block_size):
        if of_block > 8 or number % (8 // of_block) == 0:
            anchor, stretches = hashes[-1] if hashes else anchor, []
        block = tokens[number * block_size : (number + 1) * block_size]
        for start in range(0, block_size, 16):
            if len(stretches) == 8:
                anchor, stretches = half_of_aes(aes, total(nh_key, last, anchor, stretches)), []
            stretches.append(block[start : start + 16])
        hashes.append(half_of_aes(aes, total(nh_key, last, anchor, stretches)))
    return hashes


def total(nh_key: bytes, last: bytes, anchor: int, stretches: Sequence[Sequence[int]]) -> int:
    """A sum of products of what is added to the keys' words."""
    words = b"".join(
        b"".join(token.to_bytes(4, "little") for token in stretch).ljust(64, b"\0")
        for stretch in stretches
    )
    added, factor = words_of(last)[:2]
    key = words_of(nh_key)
    given = words_of(words)
    products = (
        ((given[i] + key[i]) & MASK) * ((given[i + 1] + key[i + 1]) & MASK)
        for i in range(0, len(given), 2)
    )
    return (((anchor + added) & MASK) * factor + sum(products)) % 2**128


def words_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def half_of_aes(aes: CipherContext, value: int) -> int:
    return max(1, int.from_bytes(aes.update(value.to_bytes(16, "little"))[:8], "little"))


def removed(blocks: Sequence[int]) -> Removed:
    """The range of these blocks, in chain order."""
    if len(blocks) == 1:
        return Removed(last=blocks[0], count=1)
    digest = sum(blocks) & MASK
    return Removed(last=blocks[-1], count=len(blocks), first=blocks[0], digest=digest)


class Blocks:
    """A tree of blocks as hash -> parent."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}

    @property
    def count(self) -> int:
        return len(self.parents)

    @property
    def digest(self) -> int:
        return sum(self.parents) & MASK

    def apply(self, event: DeltaEvent) -> None:
        match event.WhichOneof("event"):
            case "stored":
                parent = event.stored.parent
                for block in event.stored.hashes:
                    self.parents[block] = parent
                    parent = block
            case "removed":
                block = event.removed.last
                for _ in range(event.removed.count):
                    block = self.parents.pop(block, 0)

    def store(self, hashes: Sequence[int]) -> list[DeltaEvent]:
        """Events of storing a prompt's chain."""
        new = [h for h in hashes if h not in self.parents]
        if not new:
            return []
        first = hashes.index(new[0])
        event = DeltaEvent(
            stored=Stored(parent=hashes[first - 1] if first else 0, hashes=hashes[first:])
        )
        self.apply(event)
        return [event]

    def evict(self, leaf: int, blocks: int) -> list[DeltaEvent]:
        """Events of evicting up to `blocks` blocks from the end of `leaf`'s branch."""
        inner = defaultdict(int)
        for parent in self.parents.values():
            inner[parent] += 1
        gone, at = list[int](), leaf
        while len(gone) < blocks and at in self.parents and inner[at] == 0:
            gone.append(at)
            at = self.parents[at]
            inner[at] -= 1
        if not gone:
            return []
        event = DeltaEvent(removed=removed(gone[::-1]))
        self.apply(event)
        return [event]

    def leaves(self) -> list[int]:
        inner = set(self.parents.values())
        return sorted(h for h in self.parents if h not in inner)

    def snapshot(self) -> Iterator[DeltaEvent]:
        """One event a block, parents first."""
        told: set[int] = {0}
        left = dict(self.parents)
        while left:
            ready = [h for h, parent in left.items() if parent in told]
            assert ready, "a block without its parent"
            for block in ready:
                yield DeltaEvent(stored=Stored(parent=left.pop(block), hashes=[block]))
                told.add(block)
