"""What a call's metadata means: what passes through, and what only a router says."""

from collections.abc import Iterable

CONTROL = "prefixlb-"
"""Only a router says these; from a client or replica they are dropped."""

REPLICA = CONTROL + "replica"
MATCHED_TOKENS = CONTROL + "matched-tokens"
REASON = CONTROL + "reason"
"""Where a request went, and why; see inference.proto."""

HOP = ("grpc-", ":")
HOP_KEYS = frozenset(
    {
        *("user-agent", "content-type", "te", "host", "connection", "accept-encoding", "date"),
        *("authorization", "proxy-authorization"),
    }
)

Pairs = tuple[tuple[str, str | bytes], ...]


def passed(metadata: Iterable[tuple[str, str | bytes]] | None) -> Pairs:
    """What an intermediary hands on of a caller's or a replica's metadata."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if not key.startswith((CONTROL, *HOP)) and key not in HOP_KEYS
    )
