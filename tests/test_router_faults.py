"""What a client sees when replicas fail, hang or vanish, and when it gives up itself."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import pytest
from grpc import aio

from proto.keepalive import MIN_PING_INTERVAL_S
from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from radix_rs import RouterError
from router.health_checks import GIVE_UP_S, VANISHED_S
from router.replica_state import Liveness
from tests.fake_replica import NOT_SERVING, SERVING, FakeReplica, Script, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until
from tests.ports import free_port

pytestmark = pytest.mark.redis


async def test_a_replica_that_refuses_as_unavailable_is_passed_over_and_then_not_picked(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    r0.script = Script(refuse=grpc.StatusCode.UNAVAILABLE)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(prompt)
        await r0.health.set("", NOT_SERVING)
        await router.synced(r0, r1)
        answer = await router.generate(prompt)
        assert (answer.code, answer.replica) == (grpc.StatusCode.OK, "r1")
        assert answer.metadata["prefixlb-matched-tokens"] == "0"
        assert not (await router.statuses())["r0"].live

        await r1.flush()
        await router.synced(r0, r1)
        assert (await router.generate(prompt)).replica == "r1"
        assert len(r0.served) == 1

        r0.script = Script()
        await r0.health.set("", SERVING)
        await until(lambda: router.member(r0).state.liveness.value == "live")
        assert (await router.generate([*prompt[:40], 1])).code is grpc.StatusCode.OK


async def test_an_overloaded_replica_is_passed_over_but_stays_in_the_fleet(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    r0.script = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(prompt)
        await router.synced(r0, r1)
        answer = await router.generate(prompt)
        assert (answer.code, answer.replica) == (grpc.StatusCode.OK, "r1")
        assert (await router.statuses())["r0"].live


async def test_every_replica_is_tried_once_and_no_more_than_retries_allow(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(4)]
    for replica in fleet:
        replica.script = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with replicas(*fleet), live_router(redis_url, retries=2) as router:
        await router.synced(*fleet)
        answer = await router.generate([1, 2, 3])
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert answer.details.startswith("tried r")
        assert sorted(len(replica.served) for replica in fleet) == [0, 1, 1, 1]
        assert router.is_idle


async def test_requests_that_fail_together_do_not_come_again_together(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(6)]
    for replica in fleet:
        replica.script = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with replicas(*fleet), live_router(redis_url, retries=5) as router:
        await router.synced(*fleet)

        async def took_s(number: int) -> float:
            began_s = time.monotonic()
            answer = await router.generate([number])
            assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            return time.monotonic() - began_s

        times_s = await asyncio.gather(*(took_s(number) for number in range(16)))
        assert all(len(replica.served) == len(times_s) for replica in fleet)
        # Between its six tries each pauses four times, for parts of these that chance decides.
        most_s = 0.05 + 0.1 + 0.2 + 0.4
        assert max(times_s) - min(times_s) > 0.2 * most_s


async def test_without_a_retry_budget_no_request_is_tried_again(redis_url: str) -> None:
    fleet = [FakeReplica(f"r{i}", redis_url) for i in range(2)]
    for replica in fleet:
        replica.script = Script(refuse=grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with replicas(*fleet), live_router(redis_url, retry_budget=0.0) as router:
        await router.synced(*fleet)
        for tries in (1, 2, 3):
            answer = await router.generate([1, 2, 3])
            assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert sum(len(replica.served) for replica in fleet) == tries
        assert "prefixlb_router_retries_total 0.0" in await router.metrics()
        assert router.is_idle


async def test_an_answer_that_has_begun_fails_and_is_not_retried(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    for replica in (r0, r1):
        replica.script = Script(tokens=5, fail_after=2)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        answer = await router.generate([1, 2, 3])
        assert answer.code is grpc.StatusCode.UNAVAILABLE
        assert "failed during its answer" in answer.details
        assert len(answer.messages) == 2
        assert len(r0.served) + len(r1.served) == 1
        assert router.is_idle


async def test_cancelling_reaches_the_replica_at_once(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1000, gap_s=0.01)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        before_answer = Script(first_after_s=60)
        unread = Script(tokens=1000, text="x" * 100_000)  # more than what fits on the way
        for script in (Script(tokens=1000, gap_s=0.01), before_answer, unread):
            r0.script, r0.served = script, []
            call = router.inference.Generate(request_of([1, 2, 3]))
            if script is not before_answer:
                await call.read()
            await until(lambda: len(r0.served) == 1)
            if script is unread:
                await asyncio.sleep(0.2)
            call.cancel()
            async with asyncio.timeout(1.0):
                await r0.served[0].cancelled.wait()
            await until(lambda: r0.running == 0 and router.is_idle, 1.0, "nothing in flight")


async def test_a_deadline_reaches_the_replica_and_ends_the_request_there(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1000, gap_s=0.01)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        for script in (Script(tokens=1000, gap_s=0.01), Script(first_after_s=60)):
            r0.script, r0.served = script, []
            started = time.monotonic()
            answer = await router.generate([1, 2, 3], timeout_s=0.4)
            assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert time.monotonic() - started < 1.0
            remaining_s = r0.served[0].time_remaining_s
            assert remaining_s is not None and 0.1 < remaining_s < 0.45
            await until(lambda: r0.running == 0 and router.is_idle, 1.0, "nothing in flight")
        assert 'requests_total{code="DEADLINE_EXCEEDED",model="tiny"} 2.0' in await router.metrics()


async def test_200_streams_at_once_some_cancelled_some_late_leave_nothing_behind(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    for replica in (r0, r1):
        replica.script = Script(tokens=6, gap_s=0.05)

    async def one(number: int, router: LiveRouter) -> grpc.StatusCode:
        timeout_s = 0.05 if number % 10 == 1 else 30.0
        call = router.inference.Generate(request_of(prompt_of(30, number)), timeout=timeout_s)
        messages = 0
        try:
            async for _ in call:
                messages += 1
                if number % 10 == 0:
                    call.cancel()
        except (aio.AioRpcError, asyncio.CancelledError):
            pass
        code = await call.code()
        if code is grpc.StatusCode.OK:
            assert messages == 7
        return code

    async with replicas(r0, r1), live_router(redis_url) as router:
        await router.synced(r0, r1)
        codes = await asyncio.gather(*(one(number, router) for number in range(200)))
        assert codes.count(grpc.StatusCode.CANCELLED) == 20
        assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 20
        assert codes.count(grpc.StatusCode.OK) == 160
        await router.nothing_left(1.0)
        await until(lambda: r0.running + r1.running == 0, 1.0, "the replicas have ended all")
        await router.synced(r0, r1)


@asynccontextmanager
async def replica_process(
    name: str, redis_url: str, port: int, **script: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake replica as a process of its own, killed at the end of the block."""
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in script.items()]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fake_replica", "--id", name, "--redis-url", redis_url),
        *("--port", str(port), *flags),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_kill_9_in_mid_stream_fails_what_has_begun_and_retries_the_rest(
    redis_url: str,
) -> None:
    """... and what runs elsewhere goes on."""
    other = FakeReplica("other", redis_url)
    other.script = Script(tokens=40, gap_s=0.05)
    async with (
        replicas(other),
        live_router(redis_url) as router,
        replica_process("victim", redis_url, free_port(), tokens=1000, gap_s=0.05) as victim,
    ):
        members = router.parts.fleet.members
        await until(lambda: set(members) == {"other", "victim"}, 15.0, "both are there")
        await other.store(prompt_of(4000))
        await router.synced(other)
        elsewhere = asyncio.create_task(router.generate(prompt_of(4000)))
        await until(lambda: other.running == 1)
        other.load.pending_tokens = 10_000  # so that the victim is picked from here on
        await other.publish()
        await router.synced(other)
        begun = asyncio.create_task(router.generate(prompt_of(40, 1)))
        await until(lambda: bool(members["victim"].state.calls))
        await until(lambda: not members["victim"].state.unanswered, what="it answers")
        victim.send_signal(signal.SIGSTOP)  # what comes now has no answer when it dies
        waiting = [asyncio.create_task(router.generate(prompt_of(40, 2))) for _ in range(3)]
        await until(lambda: members["victim"].state.unanswered == 3)
        victim.send_signal(signal.SIGKILL)
        killed = time.monotonic()

        failed = await begun
        assert failed.code is grpc.StatusCode.UNAVAILABLE
        assert len(failed.messages) >= 1
        assert time.monotonic() - killed < 1.0
        for task in waiting:
            answer = await task
            assert (answer.code, answer.replica) == (grpc.StatusCode.OK, "other")
        assert (await elsewhere).code is grpc.StatusCode.OK
        assert router.is_idle


async def test_the_mirror_of_a_dead_replica_goes_with_its_lease_and_its_next_life_starts_empty(
    redis_url: str,
) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    prompt = prompt_of(40)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(prompt)
        await router.synced(r0, r1)
        await r0.kill()
        assert (await router.generate(prompt)).replica == "r1"
        await until(lambda: set(router.parts.fleet.members) == {"r1"}, 8.0, "its lease ends")
        assert 'replica="r0"' not in await router.metrics()
        with pytest.raises(RouterError, match="r0"):
            router.parts.router.mirror("r0")
        await r0.restart()
        await until(lambda: "r0" in router.parts.fleet.members)
        await router.synced(r0)
        assert router.parts.router.mirror("r0").count == 0


@pytest.mark.parametrize("known_by", ["its lease, which ends", "a list, and its health alone"])
async def test_a_frozen_replica_loses_its_unanswered_requests_to_others(
    redis_url: str, known_by: str
) -> None:
    port = free_port()
    other = FakeReplica("other", redis_url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(replicas(other))
        listed = [other.address, f"127.0.0.1:{port}"] if known_by.startswith("a list") else []
        router = await stack.enter_async_context(live_router(redis_url, listed=listed))
        members = router.parts.fleet.members
        async with replica_process("victim", redis_url, port) as victim:
            await until(lambda: set(members) == {"other", "victim"}, 15.0, "both are there")
            other.load.pending_tokens = 10_000
            await other.publish()
            await router.synced(other)
            await until(lambda: members["victim"].mirror.state.value == "streaming")
            victim.send_signal(signal.SIGSTOP)
            answer = await router.generate([1, 2, 3], timeout_s=15.0)
            assert (answer.code, answer.replica) == (grpc.StatusCode.OK, "other")
            assert "prefixlb_router_retries_total 1.0" in await router.metrics()
            assert router.is_idle


async def test_a_replica_that_leaves_takes_its_running_answers_with_it(redis_url: str) -> None:
    """Its lease ended though it still answers: the fleet, not the connection, decides."""
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1000, gap_s=0.05)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        task = asyncio.create_task(router.generate([1, 2, 3]))
        await until(lambda: bool(router.member(r0).state.calls))
        await until(lambda: not router.member(r0).state.unanswered)
        router.parts.fleet.update([])
        answer = await task
        assert answer.code is grpc.StatusCode.UNAVAILABLE
        assert answer.details == "replica r0 failed during its answer: it left the fleet"


class Cable:
    """The way to a replica, which can be cut: nobody is told, no byte arrives."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._connections: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._whole.clear()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """Address of its near end."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._carry_both(reader, writer)))

    async def _carry_both(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [
            asyncio.create_task(self._carry(reader, far)),
            asyncio.create_task(self._carry(far_reader, near)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (near, far):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(2**16):
            await self._whole.wait()
            sink.write(data)
        await self._whole.wait()


@pytest.mark.slow
async def test_answers_of_a_machine_that_vanished_without_a_word_end(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=1000, gap_s=0.05)
    await r0.start(leased=False)
    cable = Cable(r0.port)
    async with cable.laid() as address, live_router(redis_url, listed=[address]) as router:
        await router.synced(r0)
        begun = asyncio.create_task(router.generate([1, 2, 3], timeout_s=60.0))
        await until(lambda: bool(router.member(r0).state.calls))
        await until(lambda: not router.member(r0).state.unanswered, what="it answers")
        cable.cut()
        async with asyncio.timeout(VANISHED_S + 3.0):
            answer = await begun
        assert answer.code is grpc.StatusCode.UNAVAILABLE
        assert answer.details == "replica r0 failed during its answer: it is silent"
        assert router.is_idle
    await r0.kill()


@pytest.mark.slow
async def test_a_replica_that_publishes_and_cannot_be_reached_keeps_its_mirror(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    await r0.start(leased=False)
    cable = Cable(r0.port)
    async with cable.laid() as address, live_router(redis_url, listed=[address]) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        cable.cut()
        await until(lambda: router.member(r0).state.liveness is Liveness.SUSPECT)
        await asyncio.sleep(GIVE_UP_S + 2.0)
        assert router.parts.router.mirror("r0").count > 0
    await r0.kill()


async def test_a_client_may_ask_for_signs_of_life_while_it_waits(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(first_after_s=6.0)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        options = [
            ("grpc.keepalive_time_ms", int(1100 * MIN_PING_INTERVAL_S)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with aio.insecure_channel(
            f"127.0.0.1:{router.running.port}", options=options
        ) as channel:
            call = InferenceStub(channel).Generate(request_of([1, 2, 3]))
            assert len([message async for message in call]) == 4
