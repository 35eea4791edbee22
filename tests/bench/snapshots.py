"""A snapshot of a million blocks, over real gRPC, while its replica is decoding a stream."""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator

from proto.answer import Piece
from proto.client import AsyncClient
from proto.prefixlb.v1.replica_pb2 import SnapshotRequest, SnapshotResponse
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from radix_rs import Router, derive_hash_key
from router.mirror import Mirror, MirrorState
from router.replica_channel import Dialer, ask_lease
from tests.bench.row import Row
from tests.bench.timed_cluster import timed_cluster
from tests.bench.timed_replica import CHAIN_BLOCKS

NUM_BLOCKS = 1_000_000 // CHAIN_BLOCKS * CHAIN_BLOCKS


def snapshots(rounds: int) -> list[Row]:
    """How long steps are held up, and until a mirror has it all."""
    slots = 2048 * (rounds + 1)  # so many that nothing is evicted
    with timed_cluster(
        model=None, replicas=1, with_router=False, slots=slots, fill_blocks=NUM_BLOCKS
    ) as running:
        address = running.replicas[0].address
        taken = asyncio.run(_take_snapshots(address, rounds))
        measured = running.end().replicas[0]
    delays_ms = [1000 * _longest_step_s(measured["steps"], *span) for span in taken]
    return [
        Row("snapshot of 1 M blocks: step delay ms", delays_ms, 50),
        Row("  the engine's part ms", [1000 * each for each in measured["snapshot_s"]], None),
        Row("  router has applied it, s", [end - began for began, end in taken], 1),
    ]


async def _take_snapshots(address: str, rounds: int) -> list[tuple[float, float]]:
    """When each began and was applied."""
    spans = []
    dialer = Dialer()
    lease = await ask_lease(address, dialer)
    async with dialer.open(address) as channel:
        stub = ReplicaStub(channel)
        for _ in range(rounds):
            router = Router(hash_key=derive_hash_key(b""))
            router.add_replica(lease.replica_id, model=lease.model, block_size=16)
            mirror = Mirror(
                lease.replica_id,
                router=router,
                snapshot=lambda: _chunks(stub),
                rng=random.Random(),
                sleep=_now,
            )
            async with AsyncClient(address) as client:
                pieces = aiter(client.generate([5] * 40, max_tokens=2000, ignore_eos=True))
                await anext(pieces)
                decoding = asyncio.create_task(_drained(pieces))
                following = asyncio.create_task(mirror.run())
                await asyncio.sleep(0.5)
                began_s = time.monotonic()
                mirror.subscribed()
                while mirror.state is not MirrorState.STREAMING:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                spans.append((began_s, time.monotonic()))
                assert router.mirror(lease.replica_id).count >= NUM_BLOCKS
                for task in (decoding, following):
                    task.cancel()
                await asyncio.wait((decoding, following))
    return spans


async def _chunks(stub: ReplicaStub) -> AsyncGenerator[SnapshotResponse, None]:
    async for chunk in stub.Snapshot(SnapshotRequest()):
        yield chunk


async def _now(_: float) -> None:
    """No jitter."""


async def _drained(pieces: AsyncIterator[Piece]) -> None:
    async for _ in pieces:
        pass


def _longest_step_s(ends_s: list[float], began_s: float, ended_s: float) -> float:
    """The longest time between two steps within the span, less the usual one."""
    near = [end for end in ends_s if began_s - 0.3 < end < ended_s + 0.3]
    gaps = [(after - before, after) for before, after in itertools.pairwise(near)]
    usual_s = statistics.median(gap for gap, _ in gaps)
    return max(gap for gap, after in gaps if began_s < after) - usual_s
