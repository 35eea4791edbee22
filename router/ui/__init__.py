"""The status page of a router, at /ui beside its metrics: fleet, hit rates, mirrors, explain."""
