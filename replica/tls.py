"""TLS of a replica's port, by certificates that may be exchanged while it serves."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
        self._changed: grpc.ServerCertificateConfiguration | None = None
        self._metrics = metrics
        self.watched = WatchedFiles(
            "tls", files.paths, self._use, refused=metrics.refused_files.inc
        )
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._take_changed(),
            self._take_changed,
            require_client_authentication=files.ca is not None,
        )

    def _take_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Each once; None: what was taken last stays. Called on gRPC's threads."""
        changed, self._changed = self._changed, None
        return changed

    def _use(self, contents: Contents) -> None:
        tls = self._files.parse(contents)
        if tls.identity is None:
            return  # there are no such files
        cert, key = tls.identity
        self._changed = grpc.ssl_server_certificate_configuration(
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
