"""The one error of a tree, whichever core raises it."""

try:
    from radix_rs import TreeError
except ImportError:  # the Python core serves, under the same name for those who catch it

    class TreeError(Exception):  # type: ignore[no-redef]
        """Wrong use of a tree, found before anything is changed."""


__all__ = ["TreeError"]
