"""What whoever reads Redis learns of prompts: nothing. Real processes, every command watched."""

import random
import socket
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

import radix_rs
from proto.client import Client
from proto.prefixlb.v1.delta_pb2 import DeltaBatch
from proto.secret import read_hash_secret
from router.cli.cluster import LocalCluster
from router.cli.fleet_view import view_fleet
from tests.tiny_model import VOCAB_SIZE, tiny_model, write_tiny_model

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TEXT = "The violet umbrella of Ms. Quennell waits behind the thirteenth door on Obstgasse."
NAMESPACES = ({}, {"extra_key": "lora-zebra"}, {"cache_salt": "salt-of-tenant-walrus"})
WINDOW = 6
"""So many token ids in a row do not come about by chance in what is looked through."""


class Monitor:
    """All bytes of Redis' MONITOR, as Redis writes them: every command with all its arguments."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._socket.sendall(b"MONITOR\r\n")
        self._thread.start()
        try:
            yield
        finally:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._socket.close()

    def _read(self) -> None:
        while part := self._socket.recv(1 << 16):
            self._parts.append(part)

    @property
    def lines(self) -> list[bytes]:
        return b"".join(self._parts).splitlines()


def unescaped(line: bytes) -> bytes:
    """With the bytes that MONITOR writes as \\xff and the like as they were sent."""
    return line.decode("latin-1").encode().decode("unicode_escape").encode("latin-1")


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def traces(ids: Sequence[int]) -> set[bytes]:
    """What any WINDOW ids in a row look like in some encoding or other."""
    found = set()
    for start in range(len(ids) - WINDOW + 1):
        window = ids[start : start + WINDOW]
        found |= {
            *(b"".join(i.to_bytes(size, "little") for i in window) for size in (2, 4, 8)),
            b"".join(i.to_bytes(4, "big") for i in window),
            b"".join(map(varint, window)),
            *(sep.join(map(str, window)).encode() for sep in (",", ", ", " ")),
        }
    return found


def test_traces_of_a_prompt_are_found_where_they_are() -> None:
    ids = list(range(250, 270))
    assert {b"".join(map(varint, ids[3:9])), b"255, 256, 257, 258, 259, 260"} <= traces(ids)
    line = b'1.0 [0 127.0.0.1:1] "XADD" "k" "\\x00\\xff\\"\\n\\\\"'
    assert unescaped(line).endswith(b'"\x00\xff"\n\\"')


def test_nothing_in_redis_contains_a_prompt_and_namespaces_share_no_block(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny")
    _, codec = tiny_model()
    rng = random.Random(7)
    prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(160)]
    answers: list[list[int]] = []
    kept: list[bytes] = []
    cluster = LocalCluster(
        model=tmp_path / "tiny",
        state_dir=tmp_path,
        replicas=1,
        replica_flags=("--slots", "1024"),  # less than all prompts: some are evicted
    )
    try:
        cluster.redis.start()
        with redis.Redis.from_url(cluster.redis_url, socket_timeout=1) as client:
            wait_for(client)
            monitor = Monitor(cluster.redis_url)
            with monitor.watching():
                cluster.start()
                key = radix_rs.derive_hash_key(read_hash_secret(cluster.secret_file))
                model = view_fleet(cluster.router.address)[0].status.lease.model
                with Client(cluster.router.address) as caller:
                    for namespace in NAMESPACES:
                        for asked in (TEXT, [{"role": "user", "content": TEXT}], prompt):
                            done = caller.complete(asked, max_tokens=24, **namespace)
                            answers.append([*done.token_ids])
                            assert done.cached_tokens < 16, "a block of another namespace"
                    for number in range(8):
                        caller.complete(prompt[number:], max_tokens=4)
                kept += (client.dump(key) or b"" for key in client.scan_iter())
                kept += list(client.scan_iter())
                cluster.router.stop()
                for replica in cluster.replicas:
                    replica.stop()
    finally:
        cluster.stop()

    seen = b"\n".join((*map(unescaped, monitor.lines), *kept))
    assert monitor.lines[-1].partition(b'"')[2].startswith(b"ZREM"), "watched to the end"
    assert seen.count(b"XADD") > 10 and b"prefixlb:local:lease:replica-0" in seen
    for name in ("violet", "umbrella", "Quennell", "Obstgasse", "zebra", "walrus"):
        assert name.encode() not in seen and name.encode("utf-16-le") not in seen, name
    for ids in (prompt, codec.encode(TEXT), *answers):
        for trace in traces(ids):
            assert trace not in seen
    chains = [
        radix_rs.chain_hashes(
            array("I", prompt), hash_key=key, model=model, block_size=16, **namespace
        )
        for namespace in NAMESPACES
    ]
    assert_namespaces_are_apart(stored_in(monitor.lines), chains)


def wait_for(client: "redis.Redis") -> None:
    for _ in range(100):
        try:
            client.ping()
            return
        except redis.ConnectionError:
            threading.Event().wait(0.05)
    raise AssertionError("redis-server does not listen")


def stored_in(lines: Sequence[bytes]) -> set[int]:
    """Every block that was ever published as stored."""
    stored: set[int] = set()
    for line in lines:
        if b'"XADD"' in line:
            data = unescaped(line.partition(b'"batch" "')[2].removesuffix(b'"'))
            for event in DeltaBatch.FromString(data).events:
                stored.update(event.stored.hashes)
    return stored


def assert_namespaces_are_apart(stored: set[int], chains: Sequence[Sequence[int]]) -> None:
    """The same prompt was stored in each namespace, under names of its own."""
    for chain in chains:
        assert chain and set(chain) <= stored
    assert len(set().union(*chains)) == sum(map(len, chains))
