"""The wire as delta.proto specifies it: its vectors, and everybody who must agree with them.

radix_rs/tests/wire.rs checks the same file in Rust. Under --rewrite the vectors are made anew, by a
reader and hashes that know only the specification.
"""

import asyncio
import hashlib
import json
from array import array
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import radix_rs
from proto import media
from proto.prefixlb.v1.delta_pb2 import (
    Cleared,
    DeltaBatch,
    DeltaEvent,
    Dropped,
    Expected,
    Lease,
    Load,
    Removed,
    Stored,
)
from proto.prefixlb.v1.inference_pb2 import MediaItem
from proto.prefixlb.v1.replica_pb2 import SnapshotResponse
from replica.py_tree import chain
from router.mirror import Mirror, MirrorState
from router.refusals import objection
from tests import twins
from tests.live_router import until
from tests.spec_reader import Refused, SpecReader

FILE = Path(__file__).parent.parent / "proto" / "prefixlb" / "v1" / "vectors.json"
HASH_VERSION = 3
BLOCK_SIZE = 4
SECRET = b"a secret"

Vectors = dict[str, Any]


@pytest.fixture(scope="module")
def vectors(request: pytest.FixtureRequest) -> Vectors:
    if request.config.getoption("--rewrite"):
        FILE.write_text(json.dumps(make_vectors(), indent=1, ensure_ascii=False) + "\n")
    read: Vectors = json.loads(FILE.read_text())
    return read


def hexed(number: int) -> str:
    return f"{number:016x}"


# The vectors, from the specification


def make_vectors() -> Vectors:
    prompts = [
        ("m", "", "", 16, list(range(40))),
        ("m", "lora", "salt", 4, [0, 2**32 - 1, 5, 5, 5, 5, 5, 5, 1]),
        ("modèle/λ", "", "sel", 24, [(7919 * i) % 50_000 for i in range(48)]),
        ("m", "", "", 32, [2**31 + i for i in range(32)]),
        ("m", "", "", 16, [i * i for i in range(160)]),
        ("m", "", "", 144, [i * i for i in range(300)]),
    ]
    return {
        "hash_version": HASH_VERSION,
        "keys": [key_vector(secret) for secret in (b"", SECRET)],
        "secret_of_what_follows": SECRET.hex(),
        "namespaces": [
            {"model": m, "extra_key": e, "cache_salt": s, "h0": hexed(seed_of(m, e, s))}
            for m, e, s in (
                *(("m", "", ""), ("m", "a", "bc"), ("m", "ab", "c")),
                *(("m", "", "abc"), ("modèle/λ", "", "sel")),
            )
        ],
        "chains": [
            {
                "model": model,
                "extra_key": extra_key,
                "cache_salt": cache_salt,
                "block_size": block_size,
                "tokens": tokens,
                "hashes": [*map(hexed, chain_of(tokens, model, block_size, extra_key, cache_salt))],
            }
            for model, extra_key, cache_salt, block_size, tokens in prompts
        ],
        "media": media_vector(bytes(range(16)), 5),
        **stream_vectors(),
        "expected": expected_vectors(),
        "doubts": doubt_vectors(),
        "lease": lease_vector(),
    }


def key_vector(secret: bytes) -> dict[str, str]:
    key = twins.hash_key(secret)
    parts = [hashlib.sha256(key + bytes([part])).digest() for part in range(17)]
    return {
        "secret": secret.hex(),
        "key": key.hex(),
        "nh": b"".join(parts[:16]).hex(),
        "anchor": parts[16][:16].hex(),
        "aes": parts[16][16:].hex(),
        "key_check": hexed(twins.namespace_seed(key, "prefixlb-key-check", "", "")),
    }


def media_vector(content_hash: bytes, count: int) -> Vectors:
    drawn = hashlib.shake_256(b"prefixlb-media-v1" + content_hash).digest(4 * count)
    ids = [int.from_bytes(drawn[i : i + 4], "little") | 2**31 for i in range(0, 4 * count, 4)]
    return {"content_hash": content_hash.hex(), "ids": ids}


def seed_of(model: str, extra_key: str, cache_salt: str) -> int:
    return twins.namespace_seed(twins.hash_key(SECRET), model, extra_key, cache_salt)


def chain_of(
    tokens: list[int],
    model: str = "m",
    block_size: int = BLOCK_SIZE,
    extra_key: str = "",
    cache_salt: str = "",
) -> list[int]:
    return twins.chain_hashes(
        tokens,
        hash_key=twins.hash_key(SECRET),
        model=model,
        block_size=block_size,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )


A = chain_of(list(range(20)))
"""Five blocks."""
B = chain_of([*range(8), *range(90, 98)])
"""Four, of which the first two are A's."""

EPOCH = 0x0123456789ABCDEF


def batch(seq: int, held: set[int], *events: DeltaEvent, **fields: Any) -> bytes:
    """After which the tree holds `held`."""
    values: dict[str, Any] = {
        "epoch": EPOCH,
        "block_size": BLOCK_SIZE,
        "hash_version": HASH_VERSION,
        "count": len(held),
        "digest": sum(held) & twins.MASK,
    }
    return DeltaBatch(seq=seq, events=events, **{**values, **fields}).SerializeToString()


def stored(parent: int, *hashes: int) -> DeltaEvent:
    return DeltaEvent(stored=Stored(parent=parent, hashes=hashes))


def removed(*hashes: int) -> DeltaEvent:
    return DeltaEvent(removed=twins.removed(hashes))


def stream_vectors() -> Vectors:
    a3, all_blocks = set(A[:3]), {*A, *B}
    one_by_one = (
        b"".join(b"\x11" + h.to_bytes(8, "little") for h in B[2:])  # hashes, not packed
        + b"\x09"
        + B[1].to_bytes(8, "little")
    )
    unpacked = bytes([0x0A, len(one_by_one)]) + one_by_one
    told_later = b"\x2a" + bytes([len(unpacked)]) + unpacked
    of_the_future = b"\x2a\x04\x7a\x02\x08\x01" + b"\x9a\x06\x03abc"
    chunks = [batch(5, set(), stored(0, *A[:2])), batch(5, a3, stored(A[1], A[2]))]
    steps = [
        ("a batch that the snapshot holds already", batch(5, a3)),
        ("a heartbeat, with the load", batch(6, a3, load=Load(running=1, free_slots=9))),
        ("three blocks again and two new ones", batch(7, set(A), stored(0, *A))),
        (
            "another branch: the event after the header, parent last, hashes not packed",
            batch(8, all_blocks) + told_later,
        ),
        ("the same batch again", batch(8, all_blocks) + told_later),
        ("blocks that are not there are removed", batch(9, all_blocks, removed(5, 6, 7))),
        ("three blocks from the end of a branch", batch(10, {*A[:2], *B}, removed(*A[2:5]))),
        (
            "the same removal again, without its first block and digest",
            batch(11, {*A[:2], *B}, DeltaEvent(removed=Removed(last=A[4], count=3))),
        ),
        ("an event and a field of a later version", batch(12, {*A[:2], *B}) + of_the_future),
        ("what remains, the branch in two events", batch(13, {A[0]}, removed(*B[1:4]))),
        ("a batch is missing before it", batch(15, {A[0]})),
        ("stored and cleared in one", batch(14, set(), stored(A[0], A[1]), _cleared())),
        ("another life of the tree", batch(1, set(), epoch=EPOCH + 1)),
        ("a digest that contradicts", batch(15, {A[1]}, stored(0, A[0]))),
    ]
    reader = SpecReader(block_size=BLOCK_SIZE, hash_version=HASH_VERSION)
    assert reader.snapshot(chunks) == "applied"
    batches = []
    for says, data in steps:
        outcome = reader.take(data)
        batches.append(
            {
                "says": says,
                "bytes": data.hex(),
                "outcome": outcome,
                "seq": reader.seq,
                "blocks": [*map(hexed, sorted(reader.blocks))],
            }
        )
    refused = {
        "epoch 0": batch(16, set(), epoch=0),
        "seq 0": batch(0, set()),
        "another block size": batch(16, set(), block_size=2 * BLOCK_SIZE),
        "another hash version": batch(16, set(), hash_version=HASH_VERSION + 1),
        "a stored block of hash 0": batch(16, set(), stored(0, A[0], 0)),
        "a class of load above 31": batch(16, set()) + b"\x32\x04\x22\x02\x08\x20",
        "bytes that break off": batch(16, {A[0]})[:-3],
        "nothing": b"",
    }
    return {
        "block_size": BLOCK_SIZE,
        "snapshot": [chunk.hex() for chunk in chunks],
        "batches": batches,
        "refused": [{"why": why, "bytes": data.hex()} for why, data in refused.items()],
    }


def expected_vectors() -> Vectors:
    """Prompts announced; `coming`: tokens of A's and of B's prompt that are held or expected."""
    tokens = [list(range(20)), [*range(8), *range(90, 98)]]

    def expected(id: int, start: int, *hashes: int) -> DeltaEvent:
        return DeltaEvent(expected=Expected(id=id, start=start, hashes=hashes))

    def dropped(id: int) -> DeltaEvent:
        return DeltaEvent(dropped=Dropped(id=id))

    a1, a2, a3 = set(A[:1]), set(A[:2]), set(A[:3])
    chunks = [batch(5, set(), stored(0, A[0])), batch(5, a1, expected(1, 1, *A[1:3]))]
    steps = [
        ("a prompt that shares blocks with one that waits", batch(6, a1, expected(2, 1, *B[1:]))),
        ("its id again, with other blocks", batch(7, a1, expected(2, 3, *A[3:]))),
        ("a prompt whose last block is held", batch(8, a1, expected(3, 0, A[0]))),
        ("a part of the first is stored", batch(9, a2, stored(A[0], A[1]))),
        ("its last block is stored: it ends", batch(10, a3, stored(A[1], A[2]))),
        ("and does not come back with that block's removal", batch(11, a2, removed_block(A[2]))),
        ("the other is dropped", batch(12, a2, dropped(2))),
        ("it is dropped again, and one that nobody knows", batch(13, a2, dropped(2), dropped(9))),
        ("announced and dropped in one", batch(14, a2, expected(4, 2, *B[2:]), dropped(4))),
        (
            "a prompt goes on in a cleared tree",
            batch(15, set(), expected(5, 2, *A[2:]), _cleared()),
        ),
        ("all of it", batch(16, set(), expected(6, 0, *A))),
    ]
    reader = SpecReader(block_size=BLOCK_SIZE, hash_version=HASH_VERSION)
    assert reader.snapshot(chunks) == "applied"
    batches = []
    for says, data in steps:
        assert reader.take(data) == "applied", says
        coming = [BLOCK_SIZE * reader.coming(chain_of(each)) for each in tokens]
        batches.append({"says": says, "bytes": data.hex(), "coming": coming})
    return {
        "tokens": tokens,
        "snapshot": [chunk.hex() for chunk in chunks],
        "batches": batches,
        "refused": batch(17, set(), expected(7, 0, A[0], 0)).hex(),
    }


def doubt_vectors() -> list[Vectors]:
    """What a reader makes of a batch that knows more than where it stands.

    It begins with the first snapshot; a batch with a `snapshot` makes it ask for that one.
    """
    next_epoch, b2, b3 = EPOCH + 1, set(B[:2]), set(B[:3])
    forged = batch(6, set(A), stored(A[2], *A[3:]))
    steps: list[tuple[str, bytes, list[bytes]]] = [
        ("the next batch", batch(6, set(A[:3])), []),
        ("the same again", batch(6, set(A[:3])), []),
        (
            "its seq and other bytes: one of them is not the publisher's",
            forged,
            [batch(7, set(A[:4]), stored(0, *A[:4]))],
        ),
        ("the other bytes again: the snapshot has settled it", forged, []),
        ("what follows the snapshot", batch(8, set(A), stored(A[3], A[4])), []),
        (
            "another epoch",
            batch(1, set(B[:1]), stored(0, B[0]), epoch=next_epoch),
            [batch(2, b2, stored(0, *B[:2]), epoch=next_epoch)],
        ),
        (
            "one that is over: it was heard of before a snapshot of another was asked for",
            batch(9, set(A)),
            [],
        ),
        ("what follows in the other", batch(3, b3, stored(B[1], B[2]), epoch=next_epoch), []),
    ]
    reader = SpecReader(block_size=BLOCK_SIZE, hash_version=HASH_VERSION)
    reader.snapshot([bytes.fromhex(chunk) for chunk in stream_vectors()["snapshot"]])
    doubts = []
    for says, data, snapshot in steps:
        outcome = reader.take(data)
        assert (outcome in ("forged", "epoch")) == bool(snapshot), says
        if snapshot:
            assert reader.snapshot(snapshot) == "applied"
        doubts.append(
            {
                "says": says,
                "bytes": data.hex(),
                "outcome": outcome,
                "snapshot": [chunk.hex() for chunk in snapshot],
                "seq": reader.seq,
                "blocks": [*map(hexed, sorted(reader.blocks))],
            }
        )
    return doubts


def lease_vector() -> Vectors:
    """Text and numbers, the latter in hex where they are fixed64, by the names of their fields."""
    digest = hashlib.sha256(b"tokenizer").digest()
    key_check = twins.namespace_seed(twins.hash_key(SECRET), "prefixlb-key-check", "", "")
    fields: list[tuple[str, Any, bytes]] = [
        ("replica_id", "replica-0", b"\x0a\x09replica-0"),
        ("address", "[::1]:50051", b"\x12\x0b[::1]:50051"),
        ("model", "modèle/λ", b"\x1a\x0a" + "modèle/λ".encode()),
        ("page_size", 1, b"\x20\x01"),
        ("block_size", 16, b"\x28\x10"),
        ("hash_version", HASH_VERSION, b"\x30\x03"),
        ("epoch", hexed(EPOCH), b"\x39" + EPOCH.to_bytes(8, "little")),
        ("seq", 300, b"\x40\xac\x02"),
        ("tokenizer_digest", digest.hex(), b"\x4a\x20" + digest),
        ("key_check", hexed(key_check), b"\x51" + key_check.to_bytes(8, "little")),
    ]
    named = {name: value for name, value, _ in fields}
    return {**named, "bytes": b"".join(data for _, _, data in fields).hex()}


def removed_block(block: int) -> DeltaEvent:
    return DeltaEvent(removed=Removed(last=block, count=1))


def _cleared() -> DeltaEvent:
    return DeltaEvent(cleared=Cleared())


# Who must agree with them


def test_the_vectors_are_what_the_specification_gives(vectors: Vectors) -> None:
    assert vectors == json.loads(json.dumps(make_vectors()))


def test_replicas_and_routers_derive_the_keys(vectors: Vectors) -> None:
    assert vectors["hash_version"] == chain.HASH_VERSION == radix_rs.HASH_VERSION
    for each in vectors["keys"]:
        secret, key = bytes.fromhex(each["secret"]), bytes.fromhex(each["key"])
        assert chain.derive_hash_key(secret) == radix_rs.derive_hash_key(secret) == key
        assert hexed(chain.key_check(key)) == hexed(radix_rs.key_check(key)) == each["key_check"]


def test_replicas_and_routers_give_blocks_the_hashes(vectors: Vectors) -> None:
    key = radix_rs.derive_hash_key(bytes.fromhex(vectors["secret_of_what_follows"]))
    for each in vectors["namespaces"]:
        seed = chain.namespace_seed(key, each["model"], each["extra_key"], each["cache_salt"])
        assert hexed(seed) == each["h0"]
    for each in vectors["chains"]:
        namespace = {name: each[name] for name in ("model", "extra_key", "cache_salt")}
        tokens, block_size = array("I", each["tokens"]), each["block_size"]
        compiled = radix_rs.chain_hashes(tokens, hash_key=key, block_size=block_size, **namespace)
        assert [*map(hexed, compiled)] == each["hashes"]
        seed = chain.namespace_seed(key, **namespace)
        plain = chain.extend_chain(key, seed, np.asarray(tokens, np.uint32), block_size)
        assert [*map(hexed, plain)] == each["hashes"]


def test_media_counts_as_the_ids(vectors: Vectors) -> None:
    given = vectors["media"]
    item = MediaItem(start=1, end=6, content_hash=bytes.fromhex(given["content_hash"]))
    assert media.prompt_keys(array("I", range(8)), [item]).tolist() == [0, *given["ids"], 6, 7]


@pytest.fixture
def router(vectors: Vectors) -> radix_rs.Router:
    """Which has taken the snapshot."""
    router = radix_rs.Router(hash_key=bytes(16))
    router.add_replica("r", model="m", block_size=vectors["block_size"])
    chunks = [bytes.fromhex(chunk) for chunk in vectors["snapshot"]]
    for number, chunk in enumerate(chunks, start=1):
        applied = router.apply_snapshot("r", chunk, number == len(chunks))
    assert applied.outcome == "applied"
    return router


def test_a_router_takes_each_batch_as_it_should(vectors: Vectors, router: radix_rs.Router) -> None:
    for each in vectors["batches"]:
        assert router.apply("r", bytes.fromhex(each["bytes"])).outcome == each["outcome"], each
        assert [*map(hexed, router.blocks("r"))] == each["blocks"], each
        assert router.mirror("r").seq == each["seq"]
    outcomes = {each["outcome"] for each in vectors["batches"]}
    assert outcomes == {"applied", "stale", "gap", "epoch", "mismatch"}


def test_a_router_refuses_what_it_should(vectors: Vectors, router: radix_rs.Router) -> None:
    reader = SpecReader(block_size=vectors["block_size"], hash_version=vectors["hash_version"])
    for each in vectors["refused"]:
        with pytest.raises(radix_rs.RouterError):
            router.apply("r", bytes.fromhex(each["bytes"]))
        with pytest.raises(Refused):
            reader.take(bytes.fromhex(each["bytes"]))


def test_a_router_expects_what_it_should(vectors: Vectors) -> None:
    given = vectors["expected"]
    key = radix_rs.derive_hash_key(bytes.fromhex(vectors["secret_of_what_follows"]))
    router = radix_rs.Router(hash_key=key)
    router.add_replica("r", model="m", block_size=vectors["block_size"])
    for number, chunk in enumerate(given["snapshot"], start=1):
        last = number == len(given["snapshot"])
        router.apply_snapshot("r", bytes.fromhex(chunk), last)
    for each in given["batches"]:
        assert router.apply("r", bytes.fromhex(each["bytes"])).outcome == "applied", each
        coming = [
            router.explain(array("I", tokens), model="m", now_s=0.0)[0].expected
            for tokens in given["tokens"]
        ]
        assert coming == each["coming"], each
    with pytest.raises(radix_rs.RouterError):
        router.apply("r", bytes.fromhex(given["refused"]))
    with pytest.raises(Refused):
        SpecReader(block_size=4, hash_version=HASH_VERSION).take(bytes.fromhex(given["refused"]))
    router.clear("r")  # as with another epoch
    assert router.explain(array("I", given["tokens"][0]), model="m", now_s=0.0)[0].expected == 0


async def test_a_mirror_doubts_what_it_should(vectors: Vectors) -> None:
    router = radix_rs.Router(hash_key=bytes(16))
    router.add_replica("r", model="m", block_size=vectors["block_size"])
    snapshots = [vectors["snapshot"]]

    async def snapshot() -> AsyncGenerator[SnapshotResponse, None]:
        chunks = [DeltaBatch.FromString(bytes.fromhex(chunk)) for chunk in snapshots.pop()]
        for number, chunk in enumerate(chunks, start=1):
            yield SnapshotResponse(batch=chunk, last=number == len(chunks))

    mirror = Mirror(
        "r", router=router, snapshot=snapshot, rng=Random(1), sleep=lambda _: asyncio.sleep(0)
    )
    running = asyncio.create_task(mirror.run())
    mirror.subscribed()
    await until(lambda: mirror.state is MirrorState.STREAMING)
    for each in vectors["doubts"]:
        mirror.batch(bytes.fromhex(each["bytes"]))
        assert (mirror.state is MirrorState.SNAPSHOT) == bool(each["snapshot"]), each
        if each["snapshot"]:
            snapshots.append(each["snapshot"])
            await until(lambda: mirror.state is MirrorState.STREAMING)
        assert [*map(hexed, router.blocks("r"))] == each["blocks"], each
        assert router.mirror("r").seq == each["seq"]
    running.cancel()


def test_a_lease_is_read_as_it_should(vectors: Vectors) -> None:
    given = dict(vectors["lease"])
    data = bytes.fromhex(given.pop("bytes"))
    lease = Lease.FromString(data)
    assert lease.SerializeToString() == data
    for name in ("epoch", "key_check"):
        given[name] = int(given[name], 16)
    given["tokenizer_digest"] = bytes.fromhex(given["tokenizer_digest"])
    assert {field.name: value for field, value in lease.ListFields()} == given
    key = radix_rs.derive_hash_key(bytes.fromhex(vectors["secret_of_what_follows"]))
    assert objection(lease, radix_rs.key_check(key)) is None
