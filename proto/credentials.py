"""With what a client comes to a server: which authorities it trusts, its certificate, its token."""

from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc import aio

from proto.tls_files import Tls, TlsFiles

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # an attempt to connect may take this long
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""Replicas and routers are dialled directly, whatever proxy the environment names, and again soon
after they went away: by itself gRPC would refuse calls for up to two minutes after their return.
"""


@dataclass(frozen=True)
class Credentials:
    """Files in PEM; without `tls_ca` a server is spoken to in clear."""

    tls_ca: str | Path | None = None
    """Authorities; the server's certificate must be of one of them."""
    tls_cert: str | Path | None = None
    """To show, where the server asks for it; with its key."""
    tls_key: str | Path | None = None
    tls_server_name: str = ""
    """Name of the server's certificate, if that is not the host by which it is dialled."""
    token: str = field(default="", repr=False)
    """Sent with each call. It crosses the network in clear without TLS."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    @property
    def files(self) -> TlsFiles:
        given = (self.tls_cert, self.tls_key, self.tls_ca)
        return TlsFiles(*(None if path is None else Path(path) for path in given))

    def channel(self, address: str) -> grpc.Channel:
        """A connection to host:port. Raises InvalidFile."""
        if self.tls_ca is None:
            return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(address, self._of_tls(), options=self._options)

    def aio_channel(self, address: str) -> aio.Channel:
        """The same for asyncio."""
        if self.tls_ca is None:
            return aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return aio.secure_channel(address, self._of_tls(), options=self._options)

    @property
    def _options(self) -> list[tuple[str, str | int]]:
        options: list[tuple[str, str | int]] = [*CHANNEL_OPTIONS]
        if self.tls_server_name:
            options.append(("grpc.ssl_target_name_override", self.tls_server_name))
        return options

    def _of_tls(self) -> grpc.ChannelCredentials:
        return channel_credentials(self.files.read())


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """As gRPC takes them."""
    cert, key = tls.identity or (None, None)
    return grpc.ssl_channel_credentials(tls.ca, key, cert)


IN_CLEAR = Credentials()
"""Nothing to show, and no TLS."""
