"""Benchmarks: each prints one table with its workload and machine."""
