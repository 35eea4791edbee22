"""When the router says that it serves, and how its process starts and ends."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from proto.prefixlb.v1.inference_pb2_grpc import InferenceStub
from tests.fake_replica import FakeReplica, Script, replicas
from tests.live_router import live_router, prompt_of, request_of, until
from tests.ports import free_port

pytestmark = pytest.mark.redis

READINESS = ("", "readiness", "prefixlb.v1.Inference")


async def test_not_serving_until_every_mirror_streams(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    r1.snapshot_pause_s = 0.3
    async with replicas(r0, r1), live_router(redis_url) as router:
        assert [await router.serving(service) for service in READINESS] == [False] * 3
        assert await router.serving("liveness")
        await until(lambda: router.equal(r0))
        assert not await router.serving()
        await router.ready()
        assert router.equal(r0) and router.equal(r1)
        assert [await router.serving(service) for service in READINESS] == [True] * 3


async def test_a_later_gap_does_not_take_the_router_out_of_service(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.ready()
        r0.snapshot_pause_s = 0.2
        await r0.flush()
        await until(lambda: router.member(r0).mirror.state.value == "snapshot")
        assert await router.serving()


async def test_serving_after_the_timeout_whatever_is_missing(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.snapshot_fails = 10**9
    async with replicas(r0), live_router(redis_url, ready_timeout_s=0.5) as router:
        assert not await router.serving()
        await router.ready(2.0)
        await until(lambda: "r0" in router.parts.fleet.members)
        assert not router.equal(r0)
        assert (await router.generate([1])).code is grpc.StatusCode.OK


async def test_a_suspect_replica_does_not_hold_up_readiness(redis_url: str) -> None:
    r0, dead = FakeReplica("r0", redis_url), FakeReplica("dead", redis_url)
    async with replicas(r0), live_router(redis_url, ready_timeout_s=60.0) as router:
        dead.port = free_port()
        router.parts.fleet.update([r0.lease(), dead.lease()])
        router.parts.fleet.suspect(router.member(dead).state, "for the test")
        await router.ready(2.0)


async def test_draining_refuses_new_requests_and_finishes_the_running_ones(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=10, gap_s=0.05)
    async with replicas(r0), live_router(redis_url) as router:
        await router.ready()
        running = asyncio.create_task(router.generate([1, 2, 3]))
        await until(lambda: r0.running == 1)
        watch = router.health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        drain = asyncio.create_task(router.running.drain(5.0))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        late = await router.generate([1])
        assert late.code is grpc.StatusCode.UNAVAILABLE
        assert (await running).code is grpc.StatusCode.OK
        # A watcher of the health service, who stays, does not hold up the end.
        async with asyncio.timeout(1.0):
            await drain


async def test_a_call_begun_before_the_drain_whose_message_comes_after_it_is_served_to_its_end(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=20, gap_s=0.1)  # longer than what last messages get
    drains = asyncio.Event()

    async def message() -> AsyncIterator[bytes]:
        await drains.wait()
        yield request_of([1, 2, 3]).SerializeToString()

    async with replicas(r0), live_router(redis_url) as router:
        await router.ready()
        call = router.channel.stream_stream("/prefixlb.v1.Inference/Generate")(message())
        await asyncio.sleep(0.1)
        assert router.parts.admission.inflight == 0
        drain = asyncio.create_task(router.running.drain(8.0))
        await asyncio.sleep(0.05)
        drains.set()
        assert len([answer async for answer in call]) == 21
        await drain


async def test_a_client_that_knows_reflection_alone_finds_the_services_and_generates(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)

    def explore(address: str) -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(address) as channel:
            reflected = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(reflected)
            method = pool.FindServiceByName("prefixlb.v1.Inference").FindMethodByName("Generate")
            request = GetMessageClass(method.input_type)(tokens={"ids": [1, 2, 3]})
            generate = channel.unary_stream(
                f"/{method.containing_service.full_name}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            texts = [answer.text for answer in generate(request, timeout=10)]
            return list(reflected.get_services()), texts

    async with replicas(r0), live_router(redis_url) as router:
        await router.ready()
        address = f"127.0.0.1:{router.running.port}"
        services, texts = await asyncio.to_thread(explore, address)
    assert set(services) == {
        "prefixlb.v1.Inference",
        "prefixlb.v1.Admin",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert texts == ["0 ", "1 ", "2 ", ""]


@asynccontextmanager
async def router_process(
    *flags: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m router`, killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *flags),
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def serving(channel: aio.Channel) -> Any:
    """The watch of a router's health, which has just said SERVING."""
    health = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
        pass
    return watch


async def test_the_process_drains_on_sigterm_and_a_second_signal_ends_it(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=10_000, gap_s=0.05)
    port = free_port()
    flags = ("--port", str(port), "--metrics-port", "0", "--redis-url", redis_url)
    async with (
        replicas(r0),
        router_process(*flags, "--cluster=test") as process,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        watch = await serving(channel)
        call = InferenceStub(channel).Generate(request_of(prompt_of(8)))
        await call.read()
        process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await call.read()  # it goes on
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5.0):
            assert await process.wait() == 0
        assert await call.code() is not grpc.StatusCode.OK


async def test_the_process_ends_once_the_answers_that_run_are_read_to_their_end(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.script = Script(tokens=20, gap_s=0.05)
    port = free_port()
    flags = ("--port", str(port), "--metrics-port", "0", "--redis-url", redis_url)
    async with (
        replicas(r0),
        router_process(*flags, "--cluster=test") as process,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await serving(channel)
        call = InferenceStub(channel).Generate(request_of(prompt_of(8)))
        await call.read()
        process.send_signal(signal.SIGTERM)
        more = 0
        while await call.read() is not aio.EOF:
            more += 1
        assert (more, await call.code()) == (20, grpc.StatusCode.OK)
        async with asyncio.timeout(5.0):
            assert await process.wait() == 0


@pytest.mark.parametrize("port_flag", ["--port", "--metrics-port"])
async def test_a_taken_port_ends_the_process_with_one_line(redis_url: str, port_flag: str) -> None:
    other = "--metrics-port" if port_flag == "--port" else "--port"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with router_process(port_flag, str(port), other, "0") as process:
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"127.0.0.1:{port}" in errors.decode().splitlines()[-1]
    assert "Traceback" not in errors.decode()
