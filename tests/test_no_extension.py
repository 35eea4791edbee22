"""A replica where the compiled extension does not load: a process that cannot import radix_rs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from proto import keys
from proto.prefixlb.v1.delta_pb2 import DeltaBatch
from proto.prefixlb.v1.inference_pb2 import GenerateRequest, SamplingParams, TokenPrompt
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.prefixlb.v1.replica_pb2 import InfoRequest, SnapshotRequest
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from radix_rs import HASH_VERSION, Router, derive_hash_key
from tests.replica_process import ReplicaProcess
from tests.tiny_model import write_tiny_model

SECRET = b"sixteen bytes are enough"
NAME = "replica-a"
PROMPT = [*range(5, 55)]


@pytest.fixture
def no_extension(tmp_path: Path) -> Mapping[str, str]:
    """Environment of a Python in which importing radix_rs fails."""
    directory = tmp_path / "path"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text('import sys\nsys.modules["radix_rs"] = None\n')
    return {"PYTHONPATH": str(directory)}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "tiny")
    return tmp_path / "tiny"


def generate(channel: grpc.Channel, prompt: list[int]) -> int:
    """Tokens of `prompt` that were cached."""
    request = GenerateRequest(
        tokens=TokenPrompt(ids=prompt),
        sampling=SamplingParams(max_tokens=20, ignore_eos=True),
    )
    *_, last = InferenceStub(channel).Generate(request, timeout=30)
    return int(last.usage.cached_tokens)


def published(url: str, at_least_seq: int) -> list[bytes]:
    """The replica's batches, once there is one of that seq."""
    stream = keys.deltas("default", NAME)
    found: list[bytes] = []
    with redis.Redis.from_url(url) as client:
        after: Any = 0
        while not found or DeltaBatch.FromString(found[-1]).seq < at_least_seq:
            ((_, entries),) = client.xread({stream: after}, block=10_000)
            found += [fields[keys.BATCH_FIELD] for _, fields in entries]
            after = entries[-1][0]
    return found


@pytest.mark.redis
def test_it_serves_with_the_python_core_and_routers_follow_its_tree(
    no_extension: Mapping[str, str], model_dir: Path, redis_url: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    replica = ReplicaProcess(
        *(model_dir, "--redis-url", redis_url, "--replica-id", NAME, "--slots", "100"),
        *("--hash-secret-file", str(secret)),
        environment=no_extension,
    )
    try:
        with replica.channel() as channel:
            assert generate(channel, PROMPT) == 0
            assert generate(channel, PROMPT) == len(PROMPT) - 1
            generate(channel, PROMPT[::-1])  # more than the pool holds: evictions
            info = ReplicaStub(channel).Info(InfoRequest())
            assert info.evicted_tokens > 0
            batches = published(redis_url, info.lease.seq)
            snapshot = [*ReplicaStub(channel).Snapshot(SnapshotRequest())]
    finally:
        replica.process.terminate()
        code = replica.finish()
    assert code == 0
    (said,) = (line for line in replica.lines if "Python tree core" in line)
    assert "the Python tree core serves why='the extension radix_rs does not load: " in said

    key = derive_hash_key(SECRET)
    by_deltas, by_snapshot = Router(hash_key=key), Router(hash_key=key)
    first = DeltaBatch.FromString(batches[0])
    before = DeltaBatch(
        epoch=first.epoch, block_size=first.block_size, hash_version=first.hash_version
    )
    for router in (by_deltas, by_snapshot):
        router.add_replica(NAME, model="tiny", block_size=16)
    by_deltas.apply_snapshot(NAME, before.SerializeToString(), True)
    assert {by_deltas.apply(NAME, batch).outcome for batch in batches} == {"applied"}
    for part in snapshot:
        by_snapshot.apply_snapshot(NAME, part.batch.SerializeToString(), part.last)
    for router in (by_deltas, by_snapshot):
        mirror = router.mirror(NAME)
        assert (mirror.count, mirror.digest) == (info.count, info.digest)
        assert mirror.count > 0
    assert info.lease.hash_version == first.hash_version == HASH_VERSION


def test_asked_for_by_name_the_compiled_core_is_an_error_and_the_python_core_is_not(
    no_extension: Mapping[str, str], model_dir: Path
) -> None:
    rust = ReplicaProcess(model_dir, "--tree-core", "rust", environment=no_extension)
    assert rust.finish(timeout_s=60) == 2
    *said, complaint = rust.lines
    assert ["loading the model" in line for line in said] == [True]
    assert complaint.startswith("prefixlb replica: tree core rust: the extension radix_rs does")

    python = ReplicaProcess(model_dir, "--tree-core", "python", environment=no_extension)
    try:
        with python.channel() as channel:
            generate(channel, PROMPT)
    finally:
        python.process.terminate()
        assert python.finish() == 0
    assert not any("WARNING" in line for line in python.lines)
