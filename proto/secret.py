"""The cluster secret, read alike by everybody who hashes blocks."""

from pathlib import Path


def read_hash_secret(path: Path | None) -> bytes:
    """The secret in a file, without the white space around it that editors and mounts add.

    No file: the empty secret, with which hashes are the same in every cluster. Raises ValueError if
    the file cannot be read or holds nothing.
    """
    if path is None:
        return b""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"cannot read the hash secret: {error}") from error
    if not secret:
        raise ValueError(f"the hash secret in {path} is empty")
    return secret
