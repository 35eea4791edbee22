"""Routers that share nothing but Redis count each other's prompts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch

from proto.prefixlb.v1.delta_pb2 import DeltaEvent, Dropped, Expected
from proto.prefixlb.v1.inference_pb2 import SamplingParams
from radix_rs import derive_hash_key
from replica.models.interface import Batch, SlotPool
from router.mirror import MirrorState
from tests.fake_replica import FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, until
from tests.replica_rig import replica_rig
from tests.tiny_model import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.redis


class Held:
    """The tiny model, which computes a step only when it may."""

    def __init__(self) -> None:
        self._model = tiny_model()[0]
        self.config, self.device, self.dtype = (
            self._model.config,
            self._model.device,
            self._model.dtype,
        )
        self.steps = threading.Semaphore(0)
        self.free = threading.Event()

    def forward(self, batch: Batch, pool: SlotPool) -> torch.Tensor:
        while not self.free.is_set() and not self.steps.acquire(timeout=0.01):
            pass
        return self._model.forward(batch, pool)


def expected(router: LiveRouter, tokens: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Of each replica: tokens matched, and expected."""
    explained = router.parts.router.explain(
        torch.tensor(tokens).to(torch.uint32).numpy(), model="tiny", now_s=time.monotonic()
    )
    return {each.replica: (each.matched, each.expected) for each in explained}


@asynccontextmanager
async def two_routers(
    redis_url: str, count: int
) -> AsyncIterator[tuple[LiveRouter, LiveRouter, list[Held]]]:
    """Before `count` replicas r0, r1, ... whose models are held."""
    models = [Held() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for number, model in enumerate(models):
            await stack.enter_async_context(
                replica_rig(
                    derive_hash_key(b""),
                    model=model,  # type: ignore[arg-type]
                    replica_id=f"r{number}",
                    redis_url=redis_url,
                    cluster="test",
                    chunk_size=32,
                )
            )
            stack.callback(model.free.set)  # else its engine never ends
        routers = [await stack.enter_async_context(live_router(redis_url)) for _ in range(2)]
        for router in routers:
            members = router.parts.fleet.members
            await until(
                lambda members=members: (  # type: ignore[misc]
                    len(members) == count
                    and all(m.mirror.state is MirrorState.STREAMING for m in members.values())
                ),
                8.0,
                "mirrors stream",
            )
        yield routers[0], routers[1], models


ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)


async def test_a_burst_of_one_new_prefix_over_two_routers_stays_together(redis_url: str) -> None:
    prefix = [token % VOCAB_SIZE for token in prompt_of(640)]
    async with two_routers(redis_url, 4) as (ours, theirs, models):

        def send(router: LiveRouter, user: int) -> asyncio.Task[object]:
            return asyncio.create_task(router.generate([*prefix, user], sampling=ONE_TOKEN))

        first = send(theirs, 1)
        await until(
            lambda: any(coming == 640 for _, coming in expected(ours, prefix).values()),
            what="the other router knows that the prompt is coming",
        )
        assert sum(coming for _, coming in expected(ours, prefix).values()) == 640
        burst = [send(router, user) for user in range(2, 8) for router in (ours, theirs)]
        await asyncio.sleep(0)
        for model in models:
            model.free.set()
        answers = await asyncio.gather(first, *burst)
        assert len({answer.replica for answer in answers}) == 1  # type: ignore[attr-defined]
        await until(lambda: {e for _, e in expected(ours, [5] * 64).values()} == {0})
        stored = [(0, 0)] * 3 + [(640, 640)]
        await until(lambda: sorted(expected(ours, prefix).values()) == stored, what="all of it")


async def test_a_cancelled_prompt_is_no_longer_expected_by_the_other_router(
    redis_url: str,
) -> None:
    prompt = [token % VOCAB_SIZE for token in prompt_of(640)]
    async with two_routers(redis_url, 1) as (ours, theirs, (model,)):
        sent = asyncio.create_task(theirs.generate(prompt, sampling=ONE_TOKEN))
        await until(lambda: expected(ours, prompt)["r0"] == (0, 640))
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)

        def is_dropped() -> bool:
            model.steps.release()
            matched, coming = expected(ours, prompt)["r0"]
            return coming == matched < 640

        await until(is_dropped, what="dropped")


async def test_announcements_end_with_a_lost_drop_and_with_the_epoch(redis_url: str) -> None:
    replica = FakeReplica("r0", redis_url)
    prompt = prompt_of(40)

    def announced(id: int) -> DeltaEvent:
        return DeltaEvent(expected=Expected(id=id, hashes=replica.chain(prompt)))

    async with replicas(replica), live_router(redis_url) as router:
        await router.synced(replica)
        await replica.publish([announced(1)])
        await router.synced(replica)  # count and digest are those of the blocks alone
        assert expected(router, prompt)["r0"] == (0, 40)

        replica.seq += 1  # a batch that said `dropped` was lost: the next one shows the gap
        await replica.publish()
        await until(lambda: expected(router, prompt)["r0"] == (0, 0), what="healed")
        await router.synced(replica)

        replica.expected = [announced(2)]
        replica.seq += 1
        await replica.publish()
        await until(lambda: expected(router, prompt)["r0"] == (0, 40), what="in the snapshot")
        await replica.publish([DeltaEvent(dropped=Dropped(id=2))])
        await until(lambda: expected(router, prompt)["r0"] == (0, 0), what="dropped")

        await replica.publish([announced(3)])
        await until(lambda: expected(router, prompt)["r0"] == (0, 40), what="announced")
        replica.expected = []
        await replica.flush()
        await until(lambda: expected(router, prompt)["r0"] == (0, 0), what="a new epoch")
        await router.synced(replica)
