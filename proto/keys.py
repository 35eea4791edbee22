"""Names of keys and streams in Redis, and how long things stay there.

`prefixlb:{cluster}` prefixes everything, so that clusters can share a Redis.
"""

LEASE_TTL_S = 3
"""A replica that does not renew its lease for this long is dead, and nothing of it is in Redis."""

LEASE_PERIOD_S = 1.0
"""Seconds between renewals, and between heartbeat batches of an idle replica."""

SILENT_S = 10.0
"""A replica that lives and sends no batch for this long is an alarm."""

STREAM_MAX_BATCHES = 10_000
"""Batches kept in a delta stream; a reader further behind takes a snapshot."""

STREAM_MAX_BYTES = 64 << 20
"""Bytes of batches kept in a delta stream, by the same rule."""

BATCH_FIELD = b"batch"
"""The field of a stream entry that holds the serialised DeltaBatch."""


def members(cluster: str) -> str:
    """Sorted set of replica ids, scored by Redis' own time at their last renewal.

    Whoever renews removes those silent for LEASE_TTL_S; the set expires as late.
    """
    return f"prefixlb:{cluster}:replicas"


def lease(cluster: str, replica_id: str) -> str:
    """Serialised Lease with a TTL of LEASE_TTL_S; a replica lives while its key exists."""
    return f"prefixlb:{cluster}:lease:{replica_id}"


def deltas(cluster: str, replica_id: str) -> str:
    """Stream of DeltaBatch entries, at most about STREAM_MAX_BATCHES and STREAM_MAX_BYTES."""
    return f"prefixlb:{cluster}:deltas:{replica_id}"
