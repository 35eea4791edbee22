"""A router's data plane and pick, and nothing around them, as a process to be measured.

Its mirrors are not empty: every replica is taken to hold the first 12,000 tokens of the prompt that
counts up from 0, so that what is asked is found at all of them, beside prompts of its own.
`python -m tests.bench.lone_plane PORT SHARDS REPLICA... [--tls CERT KEY]`, each replica HOST:PORT.
"""

import argparse
import random
import signal
import time
from array import array
from pathlib import Path

from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Stored
from radix_rs import HASH_VERSION, Plane, Router, chain_hashes, derive_hash_key
from router.allocator import bound_what_is_kept
from router.metrics import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS

MODEL, BLOCK_SIZE = "bench", 16
HASH_KEY = derive_hash_key(b"")
HELD_TOKENS = 12_000
OTHER_PROMPTS, OTHER_BLOCKS = 200, 64


def snapshot(rng: random.Random) -> bytes:
    """What one replica holds."""
    counted = array("I", range(HELD_TOKENS))
    held = [chain_hashes(counted, hash_key=HASH_KEY, model=MODEL, block_size=BLOCK_SIZE)]
    held += [[rng.getrandbits(64) for _ in range(OTHER_BLOCKS)] for _ in range(OTHER_PROMPTS)]
    batch = DeltaBatch(
        epoch=1,
        seq=1,
        block_size=BLOCK_SIZE,
        hash_version=HASH_VERSION,
        events=[DeltaEvent(stored=Stored(hashes=hashes)) for hashes in held],
        count=sum(map(len, held)),
        digest=sum(map(sum, held)) % 2**64,
    )
    return batch.SerializeToString()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("port", type=int)
parser.add_argument("shards", type=int)
parser.add_argument("replicas", nargs="+")
parser.add_argument("--max-connections", type=int, default=4096)
parser.add_argument("--max-held-bytes", type=int, default=2**30)
parser.add_argument("--tls", type=Path, nargs=2)
arguments = parser.parse_args()

bound_what_is_kept()
router = Router(hash_key=HASH_KEY)
plane = Plane(
    router,
    host="127.0.0.1",
    port=arguments.port,
    shards=arguments.shards,
    max_inflight=4096,
    queue_size=0,
    queue_timeout_s=1.0,
    max_open_calls=8192,
    max_connections=arguments.max_connections,
    max_held_bytes=arguments.max_held_bytes,
    retries=2,
    retry_budget=0.2,
    write_stall_s=60.0,
    behind="/nowhere",
    first_token_buckets_s=FIRST_TOKEN_BUCKETS,
    inter_token_buckets_s=INTER_TOKEN_BUCKETS,
    now_s=time.monotonic(),
    seed=random.getrandbits(64),
)
for number, address in enumerate(arguments.replicas):
    name = f"r{number}"
    router.add_replica(name, model=MODEL, block_size=BLOCK_SIZE)
    applied = router.apply_snapshot(name, snapshot(random.Random(number)), True)
    assert applied.outcome == "applied", applied
    plane.add_replica(name, address=address, model=MODEL, page_size=1, tokenizer_digest=b"")
    router.set_eligible(name, True)
if arguments.tls:
    cert, key = arguments.tls
    plane.set_client_tls(cert=cert.read_bytes(), key=key.read_bytes())
plane.start()
print(plane.port, flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
print({reading.model: reading.ended for reading in plane.models()}, flush=True)
plane.stop()
