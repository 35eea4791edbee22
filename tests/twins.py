"""Slow, plain twins of compiled parts: the chain hash, a replica's blocks, the router's core."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proto.prefixlb.v1.delta_pb2 import Cleared, DeltaBatch, DeltaEvent, Removed, Stored
from proto.prefixlb.v1.delta_pb2 import Load as LoadMessage
from radix_rs import HASH_VERSION, RouterError

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


def chain_hashes(
    tokens: Sequence[int],
    *,
    hash_key: bytes,
    model: str,
    block_size: int,
    extra_key: str = "",
    cache_salt: str = "",
) -> list[int]:
    seed = b"".join(
        len(part).to_bytes(4, "little") + part
        for part in (text.encode() for text in (model, extra_key, cache_salt))
    )
    previous = max(1, siphash13(hash_key, seed))
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = b"".join(t.to_bytes(4, "little") for t in tokens[start : start + block_size])
        previous = max(1, siphash13(hash_key, previous.to_bytes(8, "little") + block))
        hashes.append(previous)
    return hashes


def mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


class Blocks:
    """A tree of blocks as hash -> parent."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}

    @property
    def count(self) -> int:
        return len(self.parents)

    @property
    def digest(self) -> int:
        return sum(map(mix, self.parents)) & MASK

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
            case "cleared":
                self.parents.clear()

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
        count, at = 0, leaf
        while count < blocks and at in self.parents and inner[at] == 0:
            count, at = count + 1, self.parents[at]
            inner[at] -= 1
        if not count:
            return []
        event = DeltaEvent(removed=Removed(last=leaf, count=count))
        self.apply(event)
        return [event]

    def clear(self) -> list[DeltaEvent]:
        self.parents.clear()
        return [DeltaEvent(cleared=Cleared())]

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


@dataclass(frozen=True)
class Applied:
    outcome: str
    epoch: int
    seq: int
    stored: int = 0
    removed: int = 0


@dataclass(frozen=True)
class Mirror:
    epoch: int
    seq: int
    count: int
    digest: int
    size_bytes: int


@dataclass(frozen=True)
class Candidate:
    replica: str
    eligible: bool
    matched: int
    expected: int
    ahead: float
    delayed_requests: float
    decode_pressure: float
    cost: float


@dataclass(frozen=True)
class Pick:
    replica: str
    matched: int
    available: int
    reason: str
    ticket: int


@dataclass
class _Replica:
    model: str
    block_size: int
    eligible: bool = False
    epoch: int = 0
    seq: int = 0
    blocks: Blocks = field(default_factory=Blocks)
    load: LoadMessage = field(default_factory=LoadMessage)
    tickets: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    """Chain and uncached tokens of prompts in flight."""


class Router:
    """Twin of radix_rs.Router, with the policies "cost" and "round_robin"."""

    def __init__(
        self,
        *,
        hash_key: bytes,
        policy: str = "cost",
        k: float = 1.5,
        decode_weight: float = 1.0,
        in_flight_ttl_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        if policy not in ("cost", "round_robin"):
            raise ValueError(f"unknown policy {policy!r}")
        self._key, self._policy, self._k, self._decode_weight = hash_key, policy, k, decode_weight
        self._replicas: dict[str, _Replica] = {}
        self._tickets = 0

    def add_replica(self, replica: str, *, model: str, block_size: int) -> None:
        for other in self._replicas.values():
            if other.model == model and other.block_size != block_size:
                raise RouterError(f"block size {block_size}, the model has {other.block_size}")
        self._replicas[replica] = _Replica(model, block_size)

    def remove_replica(self, replica: str) -> None:
        self._replicas.pop(replica, None)

    def set_eligible(self, replica: str, eligible: bool) -> None:
        self._get(replica).eligible = eligible

    def apply(self, replica: str, batch: bytes) -> Applied:
        known, message = self._get(replica), self._parse(replica, batch)
        known.load.CopyFrom(message.load)
        if message.epoch != known.epoch:
            return Applied("epoch", message.epoch, message.seq)
        if message.seq != known.seq + 1:
            outcome = "stale" if message.seq <= known.seq else "gap"
            return Applied(outcome, message.epoch, message.seq)
        known.seq = message.seq
        self._store(known, message.events)
        return Applied(self._proof(known, message), message.epoch, message.seq)

    def clear(self, replica: str) -> None:
        known = self._get(replica)
        known.epoch = known.seq = 0
        known.blocks = Blocks()

    def apply_snapshot(self, replica: str, batch: bytes, last: bool) -> Applied:
        known, message = self._get(replica), self._parse(replica, batch)
        self._store(known, message.events)
        outcome = "applied"
        if last:
            known.epoch, known.seq = message.epoch, message.seq
            outcome = self._proof(known, message)
        return Applied(outcome, message.epoch, message.seq)

    def mirror(self, replica: str) -> Mirror:
        known = self._get(replica)
        blocks = known.blocks
        return Mirror(known.epoch, known.seq, blocks.count, blocks.digest, 64 * blocks.count)

    def load(self, replica: str) -> LoadMessage:
        return self._get(replica).load

    def blocks(self, replica: str) -> list[int]:
        return sorted(self._get(replica).blocks.parents)

    def pick(
        self,
        tokens: Sequence[int],
        *,
        model: str,
        extra_key: str = "",
        cache_salt: str = "",
        exclude: Iterable[str] = (),
        now_s: float,
        dry: bool = False,
    ) -> Pick | None:
        excluded = set(exclude)
        candidates = [
            c
            for c in self.explain(
                tokens, model=model, extra_key=extra_key, cache_salt=cache_salt, now_s=now_s
            )
            if c.eligible and c.replica not in excluded
        ]
        if not candidates:
            return None
        available = max(c.matched for c in candidates)
        if self._policy == "round_robin":
            best = candidates[self._tickets % len(candidates)]
            reason = "policy"
        else:
            best = min(candidates, key=lambda c: c.cost)
            reason = "cold" if not available else "prefix" if best.matched == available else "load"
        ticket = 0
        if not dry:
            self._tickets += 1
            ticket = self._tickets
            known = self._replicas[best.replica]
            uncached = len(tokens) - max(best.matched, best.expected)
            chain = self._chain(known, tokens, extra_key, cache_salt)
            known.tickets[ticket] = (chain, uncached)
        return Pick(best.replica, best.matched, available, reason, ticket)

    def explain(
        self,
        tokens: Sequence[int],
        *,
        model: str,
        extra_key: str = "",
        cache_salt: str = "",
        now_s: float,
    ) -> list[Candidate]:
        return [
            self._candidate(name, known, tokens, extra_key, cache_salt)
            for name, known in self._replicas.items()
            if known.model == model
        ]

    def prefilled(self, ticket: int) -> None:
        for known in self._replicas.values():
            if ticket in known.tickets:
                known.tickets[ticket] = (known.tickets[ticket][0], 0)

    def release(self, ticket: int) -> None:
        for known in self._replicas.values():
            known.tickets.pop(ticket, None)

    def in_flight(self, replica: str) -> int:
        return len(self._get(replica).tickets)

    def check(self) -> None:
        for known in self._replicas.values():
            for parent in known.blocks.parents.values():
                if parent and parent not in known.blocks.parents:
                    raise RouterError(f"block {parent:016x} is missing below its child")

    def _candidate(
        self, name: str, known: _Replica, tokens: Sequence[int], extra_key: str, cache_salt: str
    ) -> Candidate:
        chain = self._chain(known, tokens, extra_key, cache_salt)
        sent = {h for flying, _ in known.tickets.values() for h in flying}
        matched = _leading(chain, known.blocks.parents) * known.block_size
        expected = _leading(chain, {*known.blocks.parents, *sent}) * known.block_size
        ahead = known.load.pending_tokens + sum(left for _, left in known.tickets.values())
        pressure = self._decode_weight * known.load.running
        return Candidate(
            replica=name,
            eligible=known.eligible and not known.load.draining,
            matched=matched,
            expected=expected,
            ahead=ahead,
            delayed_requests=0.0,
            decode_pressure=pressure,
            cost=ahead + (len(tokens) - expected) * self._k + pressure,
        )

    def _chain(
        self, known: _Replica, tokens: Sequence[int], extra_key: str, cache_salt: str
    ) -> list[int]:
        return chain_hashes(
            tokens,
            hash_key=self._key,
            model=known.model,
            block_size=known.block_size,
            extra_key=extra_key,
            cache_salt=cache_salt,
        )

    def _get(self, replica: str) -> _Replica:
        try:
            return self._replicas[replica]
        except KeyError:
            raise RouterError(f"unknown replica {replica!r}") from None

    def _parse(self, replica: str, data: bytes) -> DeltaBatch:
        message: Any = DeltaBatch()
        try:
            message.ParseFromString(data)
        except Exception as error:
            raise RouterError(f"malformed batch of {len(data)} bytes") from error
        if not message.epoch:
            raise RouterError("a batch without an epoch")
        wanted = self._get(replica).block_size
        if message.block_size != wanted or message.hash_version != HASH_VERSION:
            raise RouterError(f"block size {message.block_size}, the model has {wanted}")
        return message

    @staticmethod
    def _store(known: _Replica, events: Iterable[DeltaEvent]) -> None:
        for event in events:
            known.blocks.apply(event)

    @staticmethod
    def _proof(known: _Replica, message: DeltaBatch) -> str:
        equal = (known.blocks.count, known.blocks.digest) == (message.count, message.digest)
        return "applied" if equal else "mismatch"


def _leading(chain: Sequence[int], held: Iterable[int]) -> int:
    known = set(held)
    for index, block in enumerate(chain):
        if block not in known:
            return index
    return len(chain)
