"""What the Python tree core is given: buffers and numbers, refused in the compiled core's words."""

import operator
import sys

import numpy as np

from replica.py_tree.node import Slots, Tokens
from replica.py_tree.structure import Namespace
from replica.tree_error import TreeError

_SWAPPED = ">!" if sys.byteorder == "little" else "<"


MAX_LENGTH = 2**32 - 1


def token_array(name: str, buffer: object) -> Tokens:
    """A C-contiguous buffer of u32, without a copy."""
    tokens = _array(name, buffer, "u32", "IL").view(np.uint32)
    if len(tokens) > MAX_LENGTH:
        raise TreeError(f"a key of {len(tokens)} tokens: at most {MAX_LENGTH} are possible")
    return tokens


def slot_array(name: str, buffer: object) -> Slots:
    """A C-contiguous buffer of i32, without a copy."""
    return _array(name, buffer, "i32", "il").view(np.int32)


def writable_slots(name: str, buffer: object) -> Slots:
    slots = slot_array(name, buffer)
    if len(slots) and not slots.flags.writeable:
        raise TreeError(f"{name}: expected a writable buffer, got a read-only one")
    return slots


def _array(name: str, buffer: object, kind: str, codes: str) -> np.ndarray:
    expected = f"{name}: expected a C-contiguous buffer of {kind}"
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, BufferError) as error:
        raise TreeError(f"{expected}, got {type(buffer)}: {error}") from None
    if view.ndim == 0:
        raise TreeError(f"{expected}, got {type(buffer)}: it has no dimension")
    if view.ndim != 1:
        raise TreeError(f"{expected} of shape [n], got shape {list(view.shape or ())}")
    code = view.format.lstrip("@=<>!")
    if view.itemsize != 4 or code not in codes or view.format[0] in _SWAPPED:
        raise TreeError(f"{expected}, got items of format '{view.format}'")
    if not view.c_contiguous:
        raise TreeError(f"{expected}, got strides {list(view.strides or ())}")
    array = np.asarray(view)
    if not array.flags.aligned:
        raise TreeError(f"{expected}, got one that is not aligned")
    return array


def namespace(extra_key: str, cache_salt: str) -> Namespace:
    """A pair whose parts can be hashed; a lone surrogate cannot."""
    for part in (extra_key, cache_salt):
        part.encode()
    return extra_key, cache_salt


def natural(value: object) -> int:
    """A length, handle or receipt."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        raise TreeError(f"expected an int in 0..2^64, got {value}")
    return number


def signed(value: object) -> int:
    """A priority."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise TreeError(f"priority: expected an int in -2^63..2^63, got {value}")
    return number
