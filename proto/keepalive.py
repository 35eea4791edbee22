"""How soon a client that vanished without a word is noticed, so that its requests end.

A router finds out about replicas by its health checks instead: on a connection with such checks on
it keepalive never begins, because each check written puts it off.
"""

KEEPALIVE_S = 5.0
"""A connection that brings nothing for this long is asked for a sign of life."""

KEEPALIVE_TIMEOUT_S = 5.0
"""Without one after this long, the connection and its calls end."""

MIN_PING_INTERVAL_S = 0.5
"""Clients may ask us this often, with or without calls; who asks more often is disconnected."""

KEEPALIVE = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),  # or it gets a minute
    ("grpc.http2.max_pings_without_data", 0),  # a prefill may take long
    ("grpc.http2.min_ping_interval_without_data_ms", int(MIN_PING_INTERVAL_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of a server."""
