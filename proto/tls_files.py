"""PEM files of a process: its certificate and key, and authorities whose certificates it trusts.

Looked at here before a TLS library gets them, as those say neither which file is wrong nor how.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from proto.errors import InvalidFile
from proto.watched_files import Contents, read_file


@dataclass(frozen=True)
class TlsFiles:
    """Where they are: certificate and key, or authorities, or all three."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert, self.key, self.ca) if path is not None)

    def read(self) -> "Tls":
        """As they are now. Raises InvalidFile."""
        return self.parse(tuple(map(read_file, self.paths)))

    def parse(self, contents: Contents) -> "Tls":
        """What `paths` hold. Raises InvalidFile that says which file is wrong, and how."""
        by_path = dict(zip(self.paths, contents, strict=True))
        ca_pem = by_path[self.ca] if self.ca else None
        if self.ca and ca_pem is not None:
            _certificates(self.ca, ca_pem)
        if self.cert is None or self.key is None:
            return Tls(ca=ca_pem)
        cert_pem, key_pem = by_path[self.cert], by_path[self.key]
        own = _certificates(self.cert, cert_pem)[0]
        begins, expires = own.not_valid_before_utc, own.not_valid_after_utc
        if not begins <= datetime.now(UTC) < expires:
            raise InvalidFile(
                f"the certificate in {self.cert} is valid from {_minute(begins)} to "
                f"{_minute(expires)}, and not now"
            )
        if own.public_key() != _private_key(self.key, key_pem).public_key():
            raise InvalidFile(
                f"the key in {self.key} is not that of the certificate in {self.cert}"
            )
        return Tls((cert_pem, key_pem), ca=ca_pem, expires_s=expires.timestamp())


@dataclass(frozen=True, repr=False)
class Tls:
    """PEM of each, checked."""

    identity: tuple[bytes, bytes] | None = None
    """Certificate and key."""
    ca: bytes | None = None
    expires_s: float | None = None
    """When the certificate does, in Unix time."""


def check_pairs(**paths: Path | None) -> None:
    """Settings, by name: a certificate needs its key. Raises ValueError."""
    for name, path in paths.items():
        if not name.endswith("_cert"):
            continue
        key = name.removesuffix("_cert") + "_key"
        if (path is None) != (paths[key] is None):
            raise ValueError(f"{_flag(name)} and {_flag(key)} need each other")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidFile(f"{path} holds no certificates in PEM") from error


def _private_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise InvalidFile(f"the key in {path} is encrypted; it must have no password") from error
    except ValueError as error:
        raise InvalidFile(f"{path} holds no private key in PEM") from error
