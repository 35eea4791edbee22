"""The metrics page of a process, over HTTP on threads of its own; beside it, whether it serves."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from proto.errors import Unavailable
from proto.health_answers import HealthAnswers

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long the end of the page may take."""

PAUSE_S = 0.2
"""Between two attempts to accept while the process has no file descriptor left: the connection
that waits would end the polling at once, again and again."""

SILENCE_S = 10.0
"""Between two log lines about that."""


class Handler(MetricsHandler):
    """Paths that are about health have an answer of one line; every other one is the metrics."""

    health: HealthAnswers | None = None

    def do_GET(self) -> None:
        serves = self.health and self.health.serves(self.path)
        if serves is None:
            super().do_GET()
            return
        status, said = (
            (HTTPStatus.OK, b"SERVING\n")
            if serves
            else (HTTPStatus.SERVICE_UNAVAILABLE, b"NOT_SERVING\n")
        )
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


class Page(ThreadingHTTPServer):
    """Answers scrapes and outlives those that break off."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        family: socket.AddressFamily,
        registry: CollectorRegistry,
        *,
        health: HealthAnswers | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address_family = family
        self._clock = clock
        self._sleep = sleep
        self._quiet_until_s = float("-inf")
        handler = type("Handler", (Handler,), {"registry": registry, "health": health})
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if self._clock() >= self._quiet_until_s:
                self._quiet_until_s = self._clock() + SILENCE_S
                log.error("metrics page cannot accept connections why=%r", str(error))
            self._sleep(PAUSE_S)
            raise  # the server's loop goes on

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scrape broke off, which is the scraper's affair."""
        log.debug("scrape failed client=%s", client_address, exc_info=True)


@contextmanager
def metrics_page(
    registry: CollectorRegistry, host: str, port: int, health: HealthAnswers | None = None
) -> Iterator[int]:
    """Serve `registry` in the block, and what `health` says; yields the port.

    Raises Unavailable if it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        page = Page((str(address[0]), int(address[1])), family, registry, health=health)
    except OSError as error:
        raise Unavailable(f"cannot serve metrics on {host}:{port}: {error}") from error
    with page:
        thread = threading.Thread(target=page.serve_forever, args=(POLL_S,), name="metrics")
        thread.start()
        try:
            yield page.server_port
        finally:
            page.shutdown()
            thread.join()
