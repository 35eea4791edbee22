"""Replica: what routers and operators ask of this one."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio

from proto.errors import as_status
from proto.prefixlb.v1 import delta_pb2, replica_pb2
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaServicer
from proto.text import TextCodec
from replica.engine_thread import EngineThread
from replica.metrics import Metrics
from replica.models.interface import ModelConfig
from replica.snapshots import Snapshots

TOKENIZER_PIECE_BYTES = 1 << 20

Context = aio.ServicerContext[Any, Any]


class ReplicaService(ReplicaServicer):
    """Info is answered at once; what needs the tree, from the engine's thread between two steps."""

    def __init__(
        self,
        engine: EngineThread,
        codec: TextCodec,
        metrics: Metrics,
        *,
        config: ModelConfig,
        device: str,
        lease: Callable[[], delta_pb2.Lease],
    ) -> None:
        """`lease` gives the replica's lease as of now."""
        self._engine = engine
        self._codec = codec
        self._metrics = metrics
        self._config = config
        self._device = device
        self._lease = lease
        self._snapshots = Snapshots(engine, block_size=lease().block_size)

    async def Info(
        self, request: replica_pb2.InfoRequest, context: Context
    ) -> replica_pb2.InfoResponse:
        async with as_status(context):
            position = self._engine.position()
        response = replica_pb2.InfoResponse(
            lease=self._lease(),
            load=position.load,
            count=position.count,
            digest=position.digest,
            vocab_size=self._config.vocab_size,
            context_length=self._config.context_length,
            device=self._device,
            prompt_tokens=self._metrics.total("prompt_tokens"),
            cached_tokens=self._metrics.total("cached_tokens"),
            evicted_tokens=self._metrics.total("evicted_tokens"),
            prefilled_tokens=self._metrics.total("prefilled_tokens"),
        )
        response.lease.epoch, response.lease.seq = position.epoch, position.seq
        return response

    # A coroutine, for the reason of Inference.Generate: its place is another's at once.
    async def Snapshot(  # type: ignore[override]
        self, request: replica_pb2.SnapshotRequest, context: Context
    ) -> None:
        async with as_status(context):
            await self._snapshots.send(context.write)

    async def Flush(
        self, request: replica_pb2.FlushRequest, context: Context
    ) -> replica_pb2.FlushResponse:
        async with as_status(context):
            epoch, dropped = await self._engine.call(self._engine.engine.flush)
        return replica_pb2.FlushResponse(epoch=epoch, flushed_tokens=dropped)

    async def Tokenizer(
        self, request: replica_pb2.TokenizerRequest, context: Context
    ) -> AsyncIterator[replica_pb2.TokenizerResponse]:
        whole = self._codec.tokenizer_json
        for start in range(0, len(whole), TOKENIZER_PIECE_BYTES):
            piece = whole[start : start + TOKENIZER_PIECE_BYTES]
            yield replica_pb2.TokenizerResponse(tokenizer_json=piece)
        yield replica_pb2.TokenizerResponse(rules=self._codec.rules)
