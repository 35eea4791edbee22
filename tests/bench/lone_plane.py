"""A router's data plane and pick, and nothing around them, as a process to be measured.

`python -m tests.bench.lone_plane PORT SHARDS REPLICA... [--tls CERT KEY]`, each replica HOST:PORT.
"""

import argparse
import random
import signal
import time
from pathlib import Path

from radix_rs import Plane, Router, derive_hash_key
from router.allocator import bound_what_is_kept
from router.metrics import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("port", type=int)
parser.add_argument("shards", type=int)
parser.add_argument("replicas", nargs="+")
parser.add_argument("--max-connections", type=int, default=4096)
parser.add_argument("--max-held-bytes", type=int, default=2**30)
parser.add_argument("--tls", type=Path, nargs=2)
arguments = parser.parse_args()

bound_what_is_kept()
router = Router(hash_key=derive_hash_key(b""))
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
    router.add_replica(name, model="bench", block_size=16)
    plane.add_replica(name, address=address, model="bench", page_size=1, tokenizer_digest=b"")
    router.set_eligible(name, True)
if arguments.tls:
    cert, key = arguments.tls
    plane.set_client_tls(cert=cert.read_bytes(), key=key.read_bytes())
plane.start()
print(plane.port, flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
print({reading.model: reading.ended for reading in plane.models()}, flush=True)
plane.stop()
