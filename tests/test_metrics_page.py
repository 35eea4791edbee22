"""The metrics page when scrapers break off and when file descriptors run out."""

import errno
import logging
import socket
import struct
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge

from proto.errors import Unavailable
from proto.metrics_page import PAUSE_S, SILENCE_S, Page, metrics_page
from tests.fakes import FakeClock


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
