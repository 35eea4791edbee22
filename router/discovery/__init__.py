"""Where the router learns which replicas there are."""
