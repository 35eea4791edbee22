"""Models the engine can run: weights, forward pass, sampler."""
