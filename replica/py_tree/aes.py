"""AES-128 (FIPS 197), for the chain hash where nothing compiled is at hand.

A round is four look-ups for each column, in tables of what becomes of a byte at each of its places.
"""

import struct


def _double(value: int) -> int:
    """Times x in the field of 256 elements."""
    return value << 1 ^ (0x11B if value & 0x80 else 0)


def _s_box() -> list[int]:
    powers = [1]  # of x + 1, which are all but 0
    for _ in range(254):
        powers.append(powers[-1] ^ _double(powers[-1]))
    inverses = {0: 0} | {power: powers[-place % 255] for place, power in enumerate(powers)}
    twice = [inverses[value] * 0x101 for value in range(256)]
    return [(v ^ v >> 4 ^ v >> 5 ^ v >> 6 ^ v >> 7) & 0xFF ^ 0x63 for v in twice]


def _rotate(word: int, bits: int) -> int:
    return (word >> bits | word << 32 - bits) & 0xFFFF_FFFF


_BOX = _s_box()
_MIXED = [(_double(s) << 24) | s << 16 | s << 8 | (_double(s) ^ s) for s in _BOX]
_TABLES = _MIXED, *([_rotate(word, bits) for word in _MIXED] for bits in (8, 16, 24))


def round_keys(key: bytes) -> list[int]:
    """44 words."""
    words = list(struct.unpack(">4I", key))
    constant = 1
    while len(words) < 44:
        word = words[-1]
        if len(words) % 4 == 0:
            word = _substitute(*[_rotate(word, 24)] * 4) ^ constant << 24
            constant = _double(constant)
        words.append(words[-4] ^ word)
    return words


def encrypt(keys: list[int], block: bytes) -> bytes:
    t0, t1, t2, t3 = _TABLES
    a, b, c, d = (word ^ key for word, key in zip(struct.unpack(">4I", block), keys, strict=False))
    for i in range(4, 40, 4):
        a, b, c, d = (
            t0[a >> 24] ^ t1[b >> 16 & 255] ^ t2[c >> 8 & 255] ^ t3[d & 255] ^ keys[i],
            t0[b >> 24] ^ t1[c >> 16 & 255] ^ t2[d >> 8 & 255] ^ t3[a & 255] ^ keys[i + 1],
            t0[c >> 24] ^ t1[d >> 16 & 255] ^ t2[a >> 8 & 255] ^ t3[b & 255] ^ keys[i + 2],
            t0[d >> 24] ^ t1[a >> 16 & 255] ^ t2[b >> 8 & 255] ^ t3[c & 255] ^ keys[i + 3],
        )
    columns = (a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c)
    last = [_substitute(*four) ^ key for four, key in zip(columns, keys[40:], strict=True)]
    return struct.pack(">4I", *last)


def _substitute(a: int, b: int, c: int, d: int) -> int:
    """The S-box of the first byte of `a`, the second of `b` and so on."""
    return _BOX[a >> 24] << 24 | _BOX[b >> 16 & 255] << 16 | _BOX[c >> 8 & 255] << 8 | _BOX[d & 255]
