"""A replica: the authoritative tree, a KV slot pool, and an engine that runs a model over it."""
