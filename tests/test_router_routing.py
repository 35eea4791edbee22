"""A router between a client and replicas, over sockets and a real Redis."""

import pytest

from tests.fake_replica import FakeReplica, replicas
from tests.live_router import live_router, prompt_of

pytestmark = pytest.mark.redis


async def test_a_request_goes_where_its_longest_prefix_is(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r0, r1), live_router(redis_url) as router:
        prompt = prompt_of(40)
        await r0.store(prompt[:8])
        await r1.store(prompt[:24])
        await router.synced(r0, r1)
        answer = await router.generate(prompt)
        assert answer.code and answer.code.name == "OK"
        assert answer.metadata["prefixlb-replica"] == "r1"
        assert answer.metadata["prefixlb-matched-tokens"] == "24"
        assert answer.metadata["prefixlb-reason"] == "prefix"
        assert answer.usage.cached_tokens == 24
