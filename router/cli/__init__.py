"""The `prefixlb` command."""
