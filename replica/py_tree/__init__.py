"""The readable tree core: `PyTree` answers as `radix_rs.Tree` does."""

from replica.py_tree.tree import PyTree

__all__ = ["PyTree"]
