"""The metrics page, over HTTP on threads of its own."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler

POLL_S = 0.05
"""How long the end of the page may take."""


@contextmanager
def metrics_page(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve `registry` in the block; yields the port. Raises OSError if it is taken."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    class Page(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

    with Page((str(address[0]), int(address[1])), MetricsHandler.factory(registry)) as page:
        thread = threading.Thread(target=page.serve_forever, args=(POLL_S,), name="metrics")
        thread.start()
        try:
            yield page.server_port
        finally:
            page.shutdown()
            thread.join()
