"""The metrics page when scrapers break off, when file descriptors run out, and beside it health."""

import asyncio
import errno
import logging
import re
import socket
import struct
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client import CollectorRegistry, Gauge

from proto.errors import Unavailable
from proto.health_answers import HealthAnswers
from proto.metrics_page import (
    LIFE_S,
    MAX_CONNECTIONS,
    PAUSE_S,
    SILENCE_S,
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


@pytest.mark.parametrize("path", ["/metrics", "/", "/livez?verbose", "/echo?n=3", "/nothing"])
async def test_a_head_is_what_a_get_would_say_before_its_body(path: str) -> None:
    registry = CollectorRegistry()
    Gauge("own", "One.", registry=registry)
    servicer = health_aio.HealthServicer()
    await servicer.set("live", HealthCheckResponse.SERVING)
    health = HealthAnswers(servicer, {"/livez": "live"})
    with metrics_page(registry, "127.0.0.1", 0, health, Echo()) as port:
        got, head = await ask(port, path), await ask(port, path, head=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        raw = await reader.read()
        await closed(writer)
    assert head.status == got.status == (404 if path == "/nothing" else 200)
    assert [each for each in head.headers.items() if each[0] != "Date"] == [
        each for each in got.headers.items() if each[0] != "Date"
    ]
    assert raw.endswith(b"\r\n\r\n") and raw.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("path", ["/metric", "/metrics/", "/livez", "/ui", "/favicon.ico", "*"])
async def test_a_path_that_nothing_is_at_is_told_in_a_line(path: str) -> None:
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=Echo()) as port:
        page = await ask(port, path)
    assert (page.status, page.headers["Content-Type"]) == (404, "text/plain")
    assert page.body == b"there is nothing here; the metrics are at /metrics\n"


@pytest.mark.parametrize("name", ["Host", "Origin", "Sec-Fetch-Site"])
@pytest.mark.parametrize("asked", ["GET /metrics", "HEAD /metrics", "GET /echo", "POST /echo"])
async def test_who_says_twice_where_it_comes_from_is_refused(asked: str, name: str) -> None:
    said = f"{name}: localhost\r\n{name.lower()}: evil.example\r\nContent-Length: 2"
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=Echo()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{asked} HTTP/1.0\r\n{said}\r\n\r\n12".encode())
        writer.write_eof()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        await closed(writer)
    assert head.startswith(b"HTTP/1.0 400 ")
    expected = f'{{"error": "more than one {name} header"}}'
    assert body.decode() == ("" if asked.startswith("HEAD") else expected)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_body_that_breaks_off_is_no_request() -> None:
    head = b"POST /echo HTTP/1.0\r\nHost: x\r\nContent-Length: 8\r\n\r\n"
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=Echo()) as port:
        for sent, end in ((b"12345678", b"\r\n12345678"), (b"1234", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + sent)
            writer.write_eof()
            answer = await reader.read()
            assert answer.endswith(end) and bool(answer) == bool(end)
            await closed(writer)


@pytest.mark.parametrize("header", ["Content-Length: 5", "Transfer-Encoding: chunked"])
async def test_a_body_has_one_length(header: str) -> None:
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0, site=Echo()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST /echo HTTP/1.0\r\nContent-Length: 4\r\n{header}\r\n\r\n1234".encode())
        writer.write_eof()
        assert b" 411 " in (await reader.read()).partition(b"\r\n")[0]
        await closed(writer)


async def test_who_asks_too_slowly_is_given_up() -> None:
    clock = FakeClock()
    with Page(("127.0.0.1", 0), socket.AF_INET, CollectorRegistry(), clock=clock) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.01,))
        thread.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", page.server_port)
            async with asyncio.timeout(10):
                while not reader.at_eof():
                    writer.write(b"x")
                    clock.advance(LIFE_S / 4)
                    await asyncio.sleep(0.02)
            await closed(writer)
        finally:
            await asyncio.to_thread(page.shutdown)
            thread.join()


async def test_a_flood_of_connections_keeps_nobody_out_and_costs_no_more_than_the_bound() -> None:
    before = threading.active_count()
    with metrics_page(CollectorRegistry(), "127.0.0.1", 0) as port:
        slow = []
        for _ in range(2 * MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /")
            slow.append((reader, writer))
        assert (await ask(port, "/metrics")).status == 200
        assert threading.active_count() - before <= MAX_CONNECTIONS + 8
        assert await asyncio.wait_for(slow[0][0].read(), 10) == b""
        for _, writer in slow:
            await closed(writer)


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
