"""A file of bearer tokens: one a line; empty lines and those that begin with # say nothing."""

import re
from pathlib import Path

from proto.errors import InvalidFile

TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""As RFC 6750 has them."""

MIN_TOKEN_BYTES = 16
"""A shorter one is guessed."""

MAX_TOKENS = 1024
"""Each call is compared with all of them."""


def parse_tokens(path: Path, content: bytes) -> list[bytes]:
    """All of them. Raises InvalidFile, without a token in its words."""
    tokens = []
    for number, line in enumerate(content.splitlines(), 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if not TOKEN.fullmatch(token):
            raise InvalidFile(
                f"line {number} of {path} is no token: expected letters, digits and -._~+/ alone"
            )
        if len(token) < MIN_TOKEN_BYTES:
            raise InvalidFile(
                f"the token in line {number} of {path} has {len(token)} characters, "
                f"expected at least {MIN_TOKEN_BYTES}"
            )
        tokens.append(token)
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise InvalidFile(f"{path} holds {len(tokens)} tokens, expected 1 to {MAX_TOKENS}")
    return tokens
