"""Keys and values by slot, and which slots are free. A slot is one token's place in every layer."""

import numpy as np
import torch

from proto.errors import InvalidModel
from replica.slot_ranges import SlotArray, to_slots


class PoolError(Exception):
    """Wrong use of the pool: a slot freed twice, outside the pool, or more wanted than are free."""


class Pool:
    """`num_slots` places for keys and values; the free ones are a stack."""

    def __init__(
        self,
        *,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Raises InvalidModel if memory for it cannot be had."""
        # Zeros, not empty: a masked read multiplies what is there by 0, and 0 * NaN is NaN.
        shape = (num_slots, num_kv_heads, head_dim)
        try:
            self.keys, self.values = (
                [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
                for _ in range(2)
            )
        except RuntimeError as error:  # torch's for any memory that cannot be had
            token_bytes = 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
            raise InvalidModel(
                f"{num_slots} slots of {token_bytes} bytes on {device} are "
                f"{num_slots * token_bytes / 2**30:.1f} GiB, which cannot be had: lower --slots"
            ) from error
        self.num_slots = num_slots
        self.num_free = num_slots
        self._stack = np.arange(num_slots, dtype=np.int32)[::-1].copy()
        self._is_free = np.ones(num_slots, dtype=np.bool_)

    def alloc(self, count: int) -> SlotArray:
        """`count` free slots (i32, [count]); from a fresh pool 0, 1, 2, ... in this order."""
        if count > self.num_free:
            raise PoolError(f"need {count} slots, {self.num_free} free")
        self.num_free -= count
        slots = self._stack[self.num_free : self.num_free + count][::-1].copy()
        self._is_free[slots] = False
        return slots

    def free(self, ranges: SlotArray) -> int:
        """Give back slots that `alloc` gave, as `slot_ranges`. Returns how many.

        Raises PoolError before anything changes.
        """
        if not len(ranges):
            return 0
        ends = ranges.sum(axis=1, dtype=np.int64)
        if (ranges < (0, 1)).any() or (ends > self.num_slots).any():
            raise PoolError(f"slots outside 0..{self.num_slots - 1}, or a range of none")
        slots = to_slots(ranges)
        order = np.argsort(ranges[:, 0])
        overlap = ends[order][:-1] > ranges[order][1:, 0]
        if overlap.any() or self._is_free[slots].any():
            raise PoolError("a slot is freed twice")
        self._is_free[slots] = True
        self._stack[self.num_free : self.num_free + len(slots)] = slots[::-1]
        self.num_free += len(slots)
        return len(slots)
