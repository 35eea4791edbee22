"""A replica with the tiny model, served on loopback inside the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from grpc import aio

from proto.prefixlb.v1.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
    TokenPrompt,
)
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from proto.prefixlb.v1.replica_pb2 import (
    InfoRequest,
    InfoResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from proto.prefixlb.v1.replica_pb2_grpc import ReplicaStub
from proto.text import TextCodec
from radix_rs import derive_hash_key
from replica.models.llama import LlamaModel
from replica.models.load import LoadedModel
from replica.process import Running, running
from replica.settings import ReplicaSettings
from tests.tiny_model import tiny_model

HASH_KEY = derive_hash_key(b"secret")


@dataclass
class ReplicaRig:
    replica: Running
    codec: TextCodec
    channel: aio.Channel

    @property
    def inference(self):  # type: ignore[no-untyped-def]
        return InferenceStub(self.channel)

    @property
    def admin(self):  # type: ignore[no-untyped-def]
        return ReplicaStub(self.channel)

    async def info(self) -> InfoResponse:
        return await self.admin.Info(InfoRequest())

    async def snapshot(self) -> list[SnapshotResponse]:
        return [part async for part in self.admin.Snapshot(SnapshotRequest())]

    async def settled(self) -> None:
        """Returns once every slot is free or evictable and nobody runs."""
        async with asyncio.timeout(5):
            while True:
                load = (await self.info()).load
                usable = load.free_slots + load.evictable_slots
                if usable == load.total_slots and not (load.running or load.waiting):
                    return
                await asyncio.sleep(0.01)

    async def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> list[GenerateResponse]:
        return [part async for part in self.inference.Generate(request, timeout=timeout_s)]


@asynccontextmanager
async def replica_rig(
    hash_key: bytes = HASH_KEY, *, model: LlamaModel | None = None, **overrides: object
) -> AsyncIterator[ReplicaRig]:
    """Settings are the defaults but for free ports, few slots and `overrides`."""
    tiny, codec = tiny_model()
    settings = ReplicaSettings.model_validate(
        {"model": "tiny", "port": 0, "metrics_port": 0, "slots": 4096, **overrides}
    )
    async with (
        running(settings, LoadedModel(model or tiny, codec), hash_key) as replica,
        aio.insecure_channel(f"127.0.0.1:{replica.port}") as channel,
    ):
        yield ReplicaRig(replica, codec, channel)


def tokens_request(ids: list[int], max_tokens: int = 8, **fields: object) -> GenerateRequest:
    """Greedy, and not ended by the model itself, so that lengths are known."""
    return GenerateRequest(
        tokens=TokenPrompt(ids=ids),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


def token_ids(parts: list[GenerateResponse]) -> list[int]:
    return [token_id for part in parts for token_id in part.token_ids]
