"""The metrics page of a process, over HTTP on threads of its own; beside it, whether it serves, and
a site for people if the process has one.
"""

import json
import logging
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, MetricsHandler

from proto.errors import Unavailable
from proto.health_answers import HealthAnswers
from proto.limits import MAX_MESSAGE_BYTES
from proto.site import Answer, Asked, Site

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long the end of the page may take."""

PAUSE_S = 0.2
"""Between two attempts to accept while the process has no file descriptor left: the connection
that waits would end the polling at once, again and again."""

SILENCE_S = 10.0
"""Between two log lines about that."""

STALLED_S = 30.0
"""A client that neither sends nor takes anything for so long is given up."""

MAX_QUERY_FIELDS = 16

LARGE_BODIES = 2
"""Of these so many are held at a time: read and parsed, each may take hundreds of MiB."""

SMALL_BYTES = 2**16
"""Up to so many a body is not large, and always read."""

DROP_S = 5.0
"""How long the body of who is refused is waited for."""

DROPPED_BYTES = 2 * MAX_MESSAGE_BYTES
"""How much of it is taken."""

CHUNK_BYTES = 2**16


class Handler(MetricsHandler):
    """Paths that are about health have an answer of one line, those of the site its own; every
    other one is the metrics.
    """

    timeout = STALLED_S
    health: HealthAnswers | None = None
    site: Site | None = None
    large_bodies: threading.BoundedSemaphore

    def do_GET(self) -> None:
        if self.site and self.site.has(self._path):
            self._send(self._ask(self.site))
            return
        serves = self.health and self.health.serves(self.path)
        if serves is None:
            super().do_GET()
        elif serves:
            self._send(_line(HTTPStatus.OK, "SERVING"))
        else:
            self._send(_line(HTTPStatus.SERVICE_UNAVAILABLE, "NOT_SERVING"))

    def do_POST(self) -> None:
        if self.site is None or not self.site.has(self._path):
            self._refuse(_line(HTTPStatus.METHOD_NOT_ALLOWED, "nothing is posted here"))
            return
        length = self._admitted(self.site)
        if isinstance(length, Answer):
            self._refuse(length)
        elif length <= SMALL_BYTES:
            self._send(self._ask(self.site, self.rfile.read(length)))
        elif self.large_bodies.acquire(blocking=False):
            try:
                answer = self._ask(self.site, self.rfile.read(length))
            finally:
                self.large_bodies.release()
            self._send(answer)
        else:
            said = f"{LARGE_BODIES} bodies of over {SMALL_BYTES} bytes are in work, try again later"
            self._refuse(_error(HTTPStatus.TOO_MANY_REQUESTS, said))

    @property
    def _path(self) -> str:
        """Without the query."""
        return self.path.partition("?")[0]

    def _admitted(self, site: Site) -> int | Answer:
        """How many bytes were posted, unless it is too much for who posts it."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 20):
            return _error(HTTPStatus.LENGTH_REQUIRED, "a body needs its Content-Length")
        admitted = site.admits(self._asked({}))
        if isinstance(admitted, Answer):
            return admitted
        if int(length) > admitted:
            said = f"the body has {length} bytes, at most {admitted} are allowed"
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said)
        return int(length)

    def _ask(self, site: Site, body: bytes = b"") -> Answer:
        query = self.path.partition("?")[2]
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        return site.answer(self._asked(dict(fields), body))

    def _asked(self, query: dict[str, str], body: bytes = b"") -> Asked:
        return Asked(self.command, self._path, query, self.headers, body)

    def _refuse(self, answer: Answer) -> None:
        """The body is dropped as it comes: a connection that is closed before would be reset, and
        the answer lost.
        """
        self._send(answer)
        self.connection.shutdown(socket.SHUT_WR)
        ends_s = time.monotonic() + DROP_S
        left = DROPPED_BYTES
        while left > 0 and (left_s := ends_s - time.monotonic()) > 0:
            self.connection.settimeout(left_s)
            dropped = len(self.rfile.read1(CHUNK_BYTES))
            if not dropped:
                break
            left -= dropped

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


def _error(status: HTTPStatus, said: str) -> Answer:
    """As a site says what is wrong."""
    body = json.dumps({"error": said}).encode()
    return Answer(status, body, (("Content-Type", "application/json"),))


def _line(status: HTTPStatus, said: str) -> Answer:
    return Answer(status, f"{said}\n".encode(), (("Content-Type", "text/plain"),))


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
        site: Site | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address_family = family
        self._clock = clock
        self._sleep = sleep
        self._quiet_until_s = float("-inf")
        parts = {
            "registry": registry,
            "health": health,
            "site": site,
            "large_bodies": threading.BoundedSemaphore(LARGE_BODIES),
        }
        super().__init__(address, type("Handler", (Handler,), parts))

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
        error = sys.exception()
        if isinstance(error, OSError):
            # It broke off, which is the scraper's affair.
            log.debug("scrape failed client=%s", client_address, exc_info=True)
        elif error is not None:
            # Its words stay here: they may be a prompt's.
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            log.error(
                "page failed error=%s at=%s:%d",
                *(type(error).__name__, frame.f_code.co_filename, line),
            )


@contextmanager
def metrics_page(
    registry: CollectorRegistry,
    host: str,
    port: int,
    health: HealthAnswers | None = None,
    site: Site | None = None,
) -> Iterator[int]:
    """Serve `registry` in the block, what `health` says, and `site`; yields the port.

    Raises Unavailable if it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        page = Page((str(address[0]), int(address[1])), family, registry, health=health, site=site)
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
