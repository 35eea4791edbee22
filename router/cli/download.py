"""Downloads that continue where they broke off and are checked against a digest."""

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from proto.errors import LBError

CHUNK_BYTES = 1 << 18
TRIES = 4


class DownloadError(LBError):
    """The file cannot be had, or is not what it should be."""


def download(
    url: str, part: Path, sha256: str, progress: Callable[[int, int], None], *, pause_s: float = 1.0
) -> None:
    """Bring `part` to the whole file at `url`, continuing what is there already.

    Raises DownloadError if it cannot be had or is not what it should be. What can be continued
    stays.
    """
    for attempt in range(TRIES):
        resumed = part.exists()
        try:
            _transfer(url, part, progress)
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES - 1 or isinstance(error, urllib.error.HTTPError):
                have = part.stat().st_size if part.exists() else 0
                raise DownloadError(
                    f"download broke off after {have / 1e6:.1f} MB ({error}). "
                    "Run the same command again: it continues there"
                ) from error
            time.sleep(pause_s * 2**attempt)
            continue
        found = file_sha256(part)
        if found == sha256:
            return
        part.unlink()
        if not resumed:
            raise DownloadError(f"download is corrupt and removed: sha256 {found}, not {sha256}")
        # The earlier part was bad, or of another file: once more from the start.
    raise DownloadError(f"download is corrupt after {TRIES} tries; removed it")


def _transfer(url: str, part: Path, progress: Callable[[int, int], None]) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    tls = ssl.create_default_context()
    if certificates := os.environ.get("PIP_CERT"):
        tls.load_verify_locations(certificates)
    try:
        response = urllib.request.urlopen(request, timeout=30, context=tls)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing; the digest will tell
        raise
    with response:
        if have and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends the whole file
        size = have + int(response.headers["Content-Length"])
        with part.open("ab" if have else "wb") as file:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                progress(have, size)
    if have < size:
        raise ConnectionError(f"connection closed at {have} of {size} bytes")


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
