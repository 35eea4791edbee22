"""The cluster secret, read alike by everybody who hashes blocks."""

from pathlib import Path

MIN_SECRET_BYTES = 16
"""A shorter one is guessed."""

MAX_SECRET_BYTES = 65536


def read_hash_secret(path: Path | None) -> bytes:
    """The secret in a file, without the white space around it that editors and mounts add.

    No file: the empty secret, with which hashes are the same in every cluster. Raises ValueError if
    the file cannot be read, or holds too little or too much.
    """
    if path is None:
        return b""
    try:
        with path.open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(f"cannot read the hash secret: {error}") from error
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        size = f"{len(secret)}" if len(secret) <= MAX_SECRET_BYTES else "more"
        raise ValueError(
            f"the hash secret in {path} has {size} bytes, expected {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES}"
        )
    return secret
