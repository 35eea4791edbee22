"""One request's tokens and the slots that hold their keys and values."""

import numpy as np
import numpy.typing as npt
import torch

TokenArray = npt.NDArray[np.uint32]

_GROWTH = 256


class Sequence:
    """Tokens so far and, for those computed, their slots.

    Positions [0, owned_from) are in the tree and locked by `receipt`; [owned_from, allocated) are
    this sequence's own. Positions [0, computed) hold keys and values.
    """

    __slots__ = (
        "_slots",
        "_tokens",
        "allocated",
        "cache_salt",
        "computed",
        "counted_to",
        "extra_key",
        "length",
        "owned_from",
        "prompt_length",
        "receipt",
        "slots_tensor",
    )

    def __init__(self, prompt: TokenArray, *, extra_key: str = "", cache_salt: str = "") -> None:
        self.prompt_length = len(prompt)
        self.length = len(prompt)
        self.extra_key = extra_key
        self.cache_salt = cache_salt
        self.computed = 0
        self.owned_from = 0
        self.allocated = 0
        self.counted_to = 0
        """Up to which position the tree counted this request as a hit; survives preemption."""
        self.receipt: int | None = None
        self._tokens = np.empty(len(prompt) + _GROWTH, dtype=np.uint32)
        self._tokens[: len(prompt)] = prompt
        self._slots = np.empty(len(self._tokens), dtype=np.int64)
        self.slots_tensor = torch.from_numpy(self._slots)
        """The slots of [0, allocated), sharing memory with `slots`; rest undefined."""

    @property
    def tokens(self) -> TokenArray:
        """All tokens, prompt and generated (u32, [length]); a view."""
        return self._tokens[: self.length]

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        """The slots (i64, [allocated]); a writable view."""
        return self._slots[: self.allocated]

    @property
    def remaining(self) -> int:
        """Tokens without keys and values; the last one is computed to get the next."""
        return self.length - self.computed

    def append(self, token: int) -> None:
        if self.length == len(self._tokens):
            self._grow()
        self._tokens[self.length] = token
        self.length += 1

    def extend_slots(self, slots: npt.NDArray[np.int32]) -> None:
        """Own `slots` for the positions after the allocated ones."""
        start = self.allocated
        self.allocated += len(slots)
        self._slots[start : self.allocated] = slots

    def adopt(self, slots: npt.NDArray[np.int32]) -> None:
        """Positions [0, len(slots)) are the tree's `slots` from now on."""
        self._slots[self.owned_from : len(slots)] = slots[self.owned_from :]
        self.owned_from = len(slots)
        self.allocated = max(self.allocated, len(slots))
        self.computed = max(self.computed, len(slots))

    def _grow(self) -> None:
        room = len(self._tokens)
        self._tokens = np.concatenate((self._tokens, np.empty(room, dtype=np.uint32)))
        self._slots = np.concatenate((self._slots, np.empty(room, dtype=np.int64)))
        self.slots_tensor = torch.from_numpy(self._slots)
