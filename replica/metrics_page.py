"""The metrics page, for a scraper."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from proto.errors import Unavailable
from replica.metrics import Metrics


@contextmanager
def metrics_page(metrics: Metrics, host: str, port: int) -> Iterator[int]:
    """The metrics page over HTTP, on a thread of its own; yields its port."""
    try:
        page, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise Unavailable(f"cannot serve metrics on {host}:{port}: {error}") from error
    try:
        yield page.server_port
    finally:
        page.shutdown()
        page.server_close()
        thread.join()
