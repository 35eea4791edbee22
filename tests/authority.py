"""Certificates of an authority that exists for one test, in files as an operator mounts them."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import trustme

from proto.client import AsyncClient
from proto.credentials import Credentials
from proto.errors import Unavailable

EXPIRED = datetime.now(UTC) - timedelta(minutes=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs, and writes into one directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._ca = trustme.CA(organization_name=name)
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(self._ca.cert_pem.bytes())

    def issue(
        self, name: str, *identities: str, expires: datetime | None = None, into: Path | None = None
    ) -> Pair:
        """For these names or addresses; in files of this name, anew if they are there."""
        signed = self._ca.issue_cert(*(identities or ("127.0.0.1",)), not_after=expires)
        directory = into or self._directory
        pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
        for path, pems in (
            (pair.cert, signed.cert_chain_pems),
            (pair.key, [signed.private_key_pem]),
        ):
            path.write_bytes(b"".join(pem.bytes() for pem in pems))
        return pair

    def credentials(self, pair: Pair | None = None, **more: str) -> Credentials:
        """Of a client that trusts this authority, and shows a certificate."""
        own = {"tls_cert": pair.cert, "tls_key": pair.key} if pair else {}
        return Credentials(tls_ca=self.ca, **own, **more)  # type: ignore[arg-type]


def tls_settings(pair: Pair, client_ca: Path | None = None) -> dict[str, Path | None]:
    """Of a router or a replica."""
    return {"tls_cert": pair.cert, "tls_key": pair.key, "tls_client_ca": client_ca}


def server_credentials(pair: Pair, client_ca: Path | None = None) -> grpc.ServerCredentials:
    """Of a fake replica."""
    return grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.cert.read_bytes())],
        root_certificates=client_ca and client_ca.read_bytes(),
        require_client_auth=client_ca is not None,
    )


async def answers(port: int, credentials: Credentials) -> bool:
    """Whether one new connection serves one request; False if it comes to none."""
    async with AsyncClient(f"127.0.0.1:{port}", credentials) as client:
        try:
            await client.complete([1, 2, 3], timeout_s=5)
        except Unavailable:
            return False
        return True


class Secret:
    """A directory as Kubernetes mounts it: files are links into another one, which is swapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path / "..data"
        self._version = 0
        path.mkdir()

    def next(self) -> Path:
        """A new directory to fill; nobody sees it before `swap`."""
        self._version += 1
        version = self.path / f"..{self._version}"
        version.mkdir()
        return version

    def swap(self) -> None:
        """All files are now the new directory's."""
        version = self.path / f"..{self._version}"
        link = self.path / "..new"
        link.symlink_to(version.name)
        os.replace(link, self._data)
        for file in version.iterdir():
            shown = self.path / file.name
            if not shown.is_symlink():
                shown.symlink_to(Path("..data") / file.name)
