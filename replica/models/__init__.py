"""Models the engine can run: weights, forward pass, sampler."""

import os

# Weights and pool in pages of 2 MiB: a pass over few tokens is bound by reading all weights, and
# takes 5 to 10 % less so. torch asks once, before its first allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
