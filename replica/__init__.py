"""A replica: the authoritative radix tree, a KV slot pool, and an engine that runs a model over its slots."""
