"""Faults on purpose: a cluster under steady load, one thing broken after another, and the proof
that nothing was lost and every mirror equals its tree again.
"""
