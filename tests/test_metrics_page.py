"""The metrics page when scrapers break off, when file descriptors run out, and beside it health."""

import asyncio
import errno
import logging
import re
import socket
import struct
import threading
import time
from http import HTTPStatus
from http.client import HTTPException
from queue import SimpleQueue
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CollectorRegistry, Gauge

from proto.errors import Unavailable
from proto.health_answers import HealthAnswers
from proto.metrics_page import (
    LARGE_BODIES,
    PAUSE_S,
    SILENCE_S,
    SMALL_BYTES,
    Page,
    metrics_page,
)
from proto.site import Answer, Asked
from tests.fakes import FakeClock
from tests.http_page import ask


class Exhausted(socket.socket):
    """A listening socket of a process without a free file descriptor."""

    def accept(self):  # type: ignore[no-untyped-def]
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_without_descriptors_says_so_seldom_does_not_spin_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    address = ("127.0.0.1", 0)
    with Page(
        address, socket.AF_INET, CollectorRegistry(), clock=clock, sleep=clock.advance
    ) as page:
        listening, page.socket = page.socket, Exhausted()
        began_s, attempts = clock.now_s, 0
        while clock.now_s - began_s < 2.5 * SILENCE_S:
            page._handle_request_noblock()
            attempts += 1
        page.socket.close()
        page.socket = listening
        with socket.create_connection(page.server_address, timeout=10) as scraper:
            page._handle_request_noblock()
            scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert scraper.recv(100).startswith(b"HTTP/1.0 200 OK")
    assert attempts <= 2.5 * SILENCE_S / PAUSE_S + 1
    assert [record.getMessage() for record in caplog.records] == [
        "metrics page cannot accept connections why='[Errno 24] Too many open files'"
    ] * 3


def test_a_scrape_that_breaks_off_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="proto.metrics_page")
    registry = CollectorRegistry()
    gauge = Gauge("big", "Much to send.", ["n"], registry=registry)
    for n in range(100_000):
        gauge.labels(str(n))
    with metrics_page(registry, "127.0.0.1", 0) as port:
        with socket.create_connection(("127.0.0.1", port)) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            scraper.recv(10)
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            answer.read(10)
    assert "Traceback" not in capfd.readouterr().err
    assert {record.levelno for record in caplog.records} <= {logging.DEBUG}


def test_a_page_whose_port_is_taken_says_which() -> None:
    with (
        metrics_page(CollectorRegistry(), "127.0.0.1", 0) as port,
        pytest.raises(Unavailable, match=rf"cannot serve metrics on 127\.0\.0\.1:{port}: "),
        metrics_page(CollectorRegistry(), "127.0.0.1", port),
    ):
        pass


class Echo:
    """A site that gives back what came, and falls over what it cannot read."""

    def has(self, path: str) -> bool:
        return path.startswith("/echo")

    def admits(self, asked: Asked) -> int | Answer:
        if asked.path == "/echo/closed":
            return Answer(HTTPStatus.FORBIDDEN, b"closed", ())
        return 8

    def answer(self, asked: Asked) -> Answer:
        number = int(asked.query.get("n", "1"))
        return Answer(HTTPStatus.OK, asked.body * number, (("X-Path", asked.path),))


async def test_a_site_has_its_own_paths_beside_the_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    Gauge("own", "One.", registry=registry)
    with metrics_page(registry, "127.0.0.1", 0, site=Echo()) as port:
        assert b"own 0.0" in (await ask(port, "/metrics")).body
        assert b"own 0.0" in (await ask(port, "/")).body
        page = await ask(port, "/echo/a?n=2", post=b"hello")
        assert (page.status, page.body, page.headers["X-Path"]) == (200, b"hellohello", "/echo/a")
        assert (await ask(port, "/echo", post=b"too large")).status == 413
        assert (await ask(port, "/echo/closed", post=b"hello")).body == b"closed"
        assert (await ask(port, "/metrics", post=b"hello")).status == 405
        with pytest.raises(HTTPException):
            await ask(port, "/echo?n=a+secret+word")
    (said,) = [each.getMessage() for each in caplog.records]
    assert re.fullmatch(rf"page failed error=ValueError at={re.escape(__file__)}:\d+", said)


class Held(Echo):
    """Takes much, and is busy with it until it may go on."""

    def __init__(self) -> None:
        self.taken = SimpleQueue[int]()
        self.go_on = threading.Event()

    def admits(self, asked: Asked) -> int | Answer:
        return 2 * SMALL_BYTES

    def answer(self, asked: Asked) -> Answer:
        if len(asked.body) > SMALL_BYTES:
            self.taken.put(len(asked.body))
            self.go_on.wait(30)
        return super().answer(asked)


async def test_of_large_bodies_few_are_held_at_a_time_and_small_ones_do_not_wait() -> None:
    small, large, site = bytes(SMALL_BYTES), bytes(SMALL_BYTES + 1), Held()
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=site) as port:
        async with asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(ask(port, "/echo", post=large)) for _ in range(LARGE_BODIES)]
            for _ in held:
                await asyncio.to_thread(site.taken.get, timeout=30)
            refused = await ask(port, "/echo", post=large)
            assert (refused.status, "again later" in refused.error) == (429, True)
            assert (await ask(port, "/echo", post=small)).status == 200
            site.go_on.set()
        assert [task.result().status for task in held] == [200] * LARGE_BODIES
        assert (await ask(port, "/echo", post=large)).status == 200


@pytest.mark.parametrize(("path", "status"), [("/echo/closed", 403), ("/echo", 413), ("/x", 405)])
async def test_who_is_refused_is_told_however_much_he_posts(path: str, status: int) -> None:
    more_than_sockets_hold = bytes(16 * 2**20)
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=Echo()) as port:
        assert (await ask(port, path, post=more_than_sockets_hold)).status == status


async def test_paths_about_health_say_over_http_what_the_health_service_says() -> None:
    servicer = health_aio.HealthServicer()
    health = HealthAnswers(servicer, {"/livez": "live", "/readyz": "ready"})
    await servicer.set("live", HealthCheckResponse.SERVING)

    def ask(port: int, path: str) -> tuple[int, bytes]:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, health) as port:
        assert await asyncio.to_thread(ask, port, "/livez") == (200, b"SERVING\n")
        # A service that is not known yet does not serve either.
        assert await asyncio.to_thread(ask, port, "/readyz") == (503, b"NOT_SERVING\n")
        await servicer.set("ready", HealthCheckResponse.SERVING)
        assert await asyncio.to_thread(ask, port, "/readyz") == (200, b"SERVING\n")
        await servicer.enter_graceful_shutdown()
        assert await asyncio.to_thread(ask, port, "/readyz") == (503, b"NOT_SERVING\n")
        assert await asyncio.to_thread(ask, port, "/metrics") == (200, b"")


async def test_an_event_loop_that_hangs_serves_nobody() -> None:
    servicer = health_aio.HealthServicer()
    health = HealthAnswers(servicer, {"/livez": ""})
    asked = asyncio.get_running_loop().run_in_executor(None, health.serves, "/livez", 0.05)
    time.sleep(0.3)  # noqa: ASYNC251 - it hangs
    assert await asked is False
    assert await asyncio.to_thread(health.serves, "/livez") is True
