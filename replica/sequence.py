"""One request's tokens and the slots that hold their keys and values."""

from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch

TokenArray = npt.NDArray[np.uint32]

_GROWTH = 256


class Namespace(TypedDict):
    """What makes equal tokens mean different keys and values; empty means absent."""

    extra_key: str
    cache_salt: str


class Sequence:
    """Tokens so far and, for those computed, their slots.

    Positions [0, owned_from) are in the tree and locked by `receipt`; [owned_from, allocated) are
    this sequence's own. Positions [0, computed) hold keys and values.
    """

    __slots__ = (
        "_keys",
        "_slots",
        "_tokens",
        "allocated",
        "cached",
        "computed",
        "counted_to",
        "length",
        "namespace",
        "node",
        "owned_from",
        "priority",
        "prompt_length",
        "receipt",
        "slots_tensor",
    )

    def __init__(
        self,
        prompt: TokenArray,
        *,
        keys: TokenArray | None = None,
        extra_key: str = "",
        cache_salt: str = "",
        priority: int = 0,
    ) -> None:
        """`keys`: what the tree is to know the prompt by, if not by its tokens."""
        self.prompt_length = len(prompt)
        self.length = len(prompt)
        self.namespace: Namespace = {"extra_key": extra_key, "cache_salt": cache_salt}
        self.priority = priority
        self.computed = 0
        self.owned_from = 0
        self.allocated = 0
        self.counted_to = 0
        """Up to which position the tree counted this request as a hit; survives preemption."""
        self.receipt: int | None = None
        self.cached = self.node = 0
        """As last looked up: the tokens the tree holds of it, and the node in which they end."""
        self._tokens = _with_room(prompt)
        self._keys = self._tokens if keys is None else _with_room(keys)
        self._slots = np.empty(len(self._tokens), dtype=np.int32)
        self.slots_tensor = torch.from_numpy(self._slots)
        """The slots of [0, allocated), sharing memory with `slots`; rest undefined."""

    @property
    def tokens(self) -> TokenArray:
        """All tokens, prompt and generated (u32, [length]); a view."""
        return self._tokens[: self.length]

    @property
    def keys(self) -> TokenArray:
        """What the tree knows them by (u32, [length]); a view."""
        return self._keys[: self.length]

    @property
    def reusable(self) -> memoryview:
        """The keys of what can be reused: all but the last, which is computed for its logits."""
        return self._keys[: self.length - 1].data

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        """The slots (i32, [allocated]); a writable view."""
        return self._slots[: self.allocated]

    @property
    def room(self) -> memoryview:
        """As `slots`, with room for one a token (i32, at least [length])."""
        return self._slots.data

    @property
    def remaining(self) -> int:
        """Tokens without keys and values; the last one is computed to get the next."""
        return self.length - self.computed

    @property
    def uncached(self) -> int:
        """Tokens to compute before the next one comes, as last looked up; at least 1."""
        return self.length - max(self.cached, self.computed)

    def append(self, token: int) -> None:
        if self.length == len(self._tokens):
            self._grow()
        self._tokens[self.length] = self._keys[self.length] = token
        self.length += 1

    def extend_slots(self, slots: npt.NDArray[np.int32]) -> None:
        """Own `slots` for the positions after the allocated ones."""
        start = self.allocated
        self.allocated += len(slots)
        self._slots[start : self.allocated] = slots

    def _grow(self) -> None:
        is_same = self._keys is self._tokens
        self._tokens = _with_room(self._tokens, len(self._tokens))
        self._keys = self._tokens if is_same else _with_room(self._keys, len(self._keys))
        self._slots = np.resize(self._slots, len(self._tokens))
        self.slots_tensor = torch.from_numpy(self._slots)


def _with_room(tokens: TokenArray, more: int = _GROWTH) -> TokenArray:
    return np.concatenate((tokens, np.empty(more, dtype=np.uint32)))
