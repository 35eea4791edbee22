"""The metrics page of a process, over HTTP on threads of its own; beside it, whether it serves, and
a site for people if the process has one.
"""

import io
import json
import logging
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

METRICS = ("/metrics", "/")

FROM_WHERE = ("Host", "Origin", "Sec-Fetch-Site")
"""Headers of which there is one at most: who reads the first would trust what others do not see."""

PAUSE_S = 0.2
"""Between two attempts to accept while the process has no file descriptor left: the connection
that waits would end the polling at once, again and again."""

SILENCE_S = 10.0
"""Between two log lines about that."""

MAX_CONNECTIONS = 64
"""At a time: the oldest makes way for one more, so that nobody can use up the process' threads and
file descriptors, or keep scrapes and probes out.
"""

LIFE_S = 30.0
"""Of a connection, which brings one request: who asks or reads more slowly is given up."""

MAX_QUERY_FIELDS = 16

DROP_S = 5.0
"""How long the body of who is refused is waited for."""

DROPPED_BYTES = 2 * MAX_MESSAGE_BYTES
"""How much of it is taken."""

CHUNK_BYTES = 2**16


class Handler(MetricsHandler):
    """Paths that are about health have an answer of one line, those of the site its own."""

    timeout = LIFE_S
    health: HealthAnswers | None = None
    site: Site | None = None

    def do_GET(self) -> None:
        if ambiguous := self._ambiguous():
            self._send(ambiguous)
        elif self.site and self.site.has(self._path):
            self._send(self._ask(self.site))
        elif self._path in METRICS:
            super().do_GET()
        else:
            self._send(self._about_health())

    do_HEAD = do_GET

    def end_headers(self) -> None:
        super().end_headers()
        if self.command == "HEAD":
            self.wfile = io.BytesIO()  # the body goes nowhere

    def do_POST(self) -> None:
        if ambiguous := self._ambiguous():
            self._refuse(ambiguous)
            return
        if self.site is None or not self.site.has(self._path):
            self._refuse(_line(HTTPStatus.METHOD_NOT_ALLOWED, "nothing is posted here"))
            return
        length = self._admitted(self.site)
        if isinstance(length, Answer):
            self._refuse(length)
        else:
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionAbortedError("the body broke off")
            self._send(self._ask(self.site, body))

    @property
    def _path(self) -> str:
        """Without the query."""
        return self.path.partition("?")[0]

    def _ambiguous(self) -> Answer | None:
        """The refusal of who says twice where it comes from."""
        for name in FROM_WHERE:
            if len(self.headers.get_all(name, ())) > 1:
                return _error(HTTPStatus.BAD_REQUEST, f"more than one {name} header")
        return None

    def _about_health(self) -> Answer:
        """Not found if the path is not about that either."""
        serves = self.health and self.health.serves(self._path)
        if serves is None:
            return _line(HTTPStatus.NOT_FOUND, "there is nothing here; the metrics are at /metrics")
        if serves:
            return _line(HTTPStatus.OK, "SERVING")
        return _line(HTTPStatus.SERVICE_UNAVAILABLE, "NOT_SERVING")

    def _admitted(self, site: Site) -> int | Answer:
        """How many bytes were posted, unless it is too much for who posts it."""
        length, *more = self.headers.get_all("Content-Length", [""])
        is_number = length.isascii() and length.isdecimal() and len(length) < 20
        if not is_number or more or "Transfer-Encoding" in self.headers:
            return _error(HTTPStatus.LENGTH_REQUIRED, "a body needs one Content-Length")
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
        method = "GET" if self.command == "HEAD" else self.command
        return Asked(method, self._path, query, self.headers, body)

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
    request_queue_size = 2 * MAX_CONNECTIONS

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
        self._ends_s: dict[Any, float] = {}
        """Of each connection, the oldest first."""
        self._lock = threading.Lock()
        parts = {"registry": registry, "health": health, "site": site}
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

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._ends_s) >= MAX_CONNECTIONS:
                self._end(next(iter(self._ends_s)))
            self._ends_s[request] = self._clock() + LIFE_S
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called again and again, connections or not."""
        now_s = self._clock()
        with self._lock:
            for request in [each for each, ends_s in self._ends_s.items() if ends_s <= now_s]:
                self._end(request)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._ends_s.pop(request, None)
        super().close_request(request)

    def _end(self, request: Any) -> None:
        """Its thread sees that, and closes it."""
        del self._ends_s[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            # It broke off, which is the scraper's affair.
            log.debug("scrape failed client=%s", client_address, exc_info=True)
        elif error is not None:
            # Its words stay here: they may be a prompt's.
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            log.error(
                "page failed error=%s at=%s",
                type(error).__name__,
                f"{frame.f_code.co_filename}:{line}",
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
