"""What the tree says in wire format, read with the messages that protoc makes."""

from array import array

from proto.prefixlb.v1 import delta_pb2
from radix_rs import HASH_VERSION, Tree, chain_hashes, derive_hash_key

KEY = derive_hash_key(b"a secret")
TOKENS = array("I", range(100))


def tree_of_100_tokens() -> Tree:
    tree = Tree(page_size=4, block_size=16, hash_key=KEY, model="m")
    tree.insert(TOKENS, array("i", range(100)), extra_key="lora", cache_salt="salt")
    return tree


def hashes_of_100_tokens() -> list[int]:
    return chain_hashes(
        TOKENS, hash_key=KEY, model="m", block_size=16, extra_key="lora", cache_salt="salt"
    )


def test_events_appended_to_a_header_are_a_batch() -> None:
    tree = tree_of_100_tokens()
    deltas = tree.drain_deltas()
    assert deltas is not None
    header = delta_pb2.DeltaBatch(
        epoch=7,
        seq=1,
        block_size=16,
        hash_version=HASH_VERSION,
        load=delta_pb2.Load(running=3),
        count=deltas.count,
        digest=deltas.digest,
    )
    batch = delta_pb2.DeltaBatch.FromString(header.SerializeToString() + deltas.events)
    header.events.add().stored.hashes.extend(hashes_of_100_tokens())
    assert batch == header
    assert (deltas.stored, deltas.removed, deltas.count) == (6, 0, 6)


def test_every_event_is_byte_for_byte_what_protoc_writes() -> None:
    tree = tree_of_100_tokens()
    out = array("i", [0] * 100)
    tree.match_prefix(TOKENS[:40], out, extra_key="lora", cache_salt="salt")
    tree.evict(1)
    tree.insert(TOKENS, array("i", range(100)))
    stored_removed = tree.drain_deltas()
    tree.reset()
    cleared = tree.drain_deltas()
    assert stored_removed is not None
    assert cleared is not None

    first = hashes_of_100_tokens()
    evicted = first[2:]
    plain = chain_hashes(TOKENS, hash_key=KEY, model="m", block_size=16)
    Event, Stored = delta_pb2.DeltaEvent, delta_pb2.Stored
    expected = delta_pb2.DeltaBatch(
        events=[
            Event(stored=Stored(hashes=first)),
            Event(
                removed=delta_pb2.Removed(
                    last=evicted[-1], count=4, first=evicted[0], digest=sum(evicted) % 2**64
                )
            ),
            Event(stored=Stored(hashes=plain)),
        ]
    )
    assert stored_removed.events == expected.SerializeToString()
    expected = delta_pb2.DeltaBatch(events=[Event(cleared=delta_pb2.Cleared())])
    assert cleared.events == expected.SerializeToString()


def test_a_run_names_the_block_it_follows() -> None:
    tree = tree_of_100_tokens()
    tree.drain_deltas()
    longer = array("I", range(200))
    tree.insert(longer, array("i", range(200)), extra_key="lora", cache_salt="salt")
    deltas = tree.drain_deltas()
    assert deltas is not None
    (event,) = delta_pb2.DeltaBatch.FromString(deltas.events).events
    assert event.stored.parent == hashes_of_100_tokens()[-1]
    assert len(event.stored.hashes) == 200 // 16 - 100 // 16


def test_snapshot_chunks_are_events_of_a_batch_and_continue_each_other() -> None:
    tree = tree_of_100_tokens()
    stored = [delta_pb2.DeltaBatch.FromString(chunk).events[0].stored for chunk in tree.snapshot(4)]
    hashes = hashes_of_100_tokens()
    assert [list(run.hashes) for run in stored] == [hashes[:4], hashes[4:]]
    assert [run.parent for run in stored] == [0, hashes[3]]
    assert tree.drain_deltas() is not None, "a snapshot drains nothing"


def test_a_snapshot_is_of_the_tree_as_it_was() -> None:
    tree = tree_of_100_tokens()
    now, later = list(tree.snapshot(4)), tree.snapshot(4)
    assert next(later) == now[0]
    tree.reset()
    assert list(later) == now[1:]
    assert list(tree.snapshot()) == []
