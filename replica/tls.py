"""TLS of a replica's port, by certificates that may be exchanged while it serves."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from proto.exposure import is_loopback
from proto.tls_files import TlsFiles
from proto.watched_files import Contents, WatchedFiles
from replica.metrics import Metrics
from replica.settings import ReplicaSettings

log = logging.getLogger(__name__)


class ServerTls:
    """What gRPC asks for with each connection. Connections that stand keep what they began with."""

    def __init__(self, files: TlsFiles, metrics: Metrics) -> None:
        """Raises InvalidFile."""
        self._files = files
        self._metrics = metrics
        self.watched = WatchedFiles(
            "tls", files.paths, self._use, refused=metrics.refused_files.inc
        )

    def credentials(self) -> grpc.ServerCredentials:
        """For one port."""
        used = self._configuration

        def changed() -> Any:
            """None: what was used last stays. Called on gRPC's threads."""
            nonlocal used
            if used is self._configuration:
                return None
            used = self._configuration
            return used

        return grpc.dynamic_ssl_server_credentials(
            used, changed, require_client_authentication=self._files.ca is not None
        )

    def _use(self, contents: Contents) -> None:
        tls = self._files.parse(contents)
        if tls.identity is None:
            return  # there are no such files
        cert, key = tls.identity
        self._configuration = grpc.ssl_server_certificate_configuration(
            [(key, cert)], root_certificates=tls.ca
        )
        self._metrics.certificate_expiry.set(tls.expires_s or 0)


@asynccontextmanager
async def followed(tls: ServerTls | None) -> AsyncIterator[None]:
    """Within the block changes of the files come into use."""
    if tls is None:
        yield
        return
    following = asyncio.create_task(tls.watched.follow(), name="files")
    try:
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def warn_of_exposure(settings: ReplicaSettings) -> None:
    """A replica knows no tokens: only client certificates tell routers from others."""
    if not is_loopback(settings.host) and not settings.tls_client_ca:
        log.warning(
            "whoever reaches this address may use the replica: --tls-client-ca, or a network that "
            "lets routers alone in, would change that host=%s",
            settings.host,
        )
