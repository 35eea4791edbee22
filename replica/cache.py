"""The only bridge between tree and pool: who holds which slots, and how they come and go."""

import numpy as np

from replica.pool import Pool
from replica.sequence import Sequence
from replica.tree_core import TreeCore


class CacheError(Exception):
    """Slots are unaccounted for; the message has the numbers."""


class Cache:
    """Every slot is free, the tree's (evictable or protected), or a sequence's own."""

    def __init__(self, tree: TreeCore, pool: Pool, *, page_size: int) -> None:
        self._tree = tree
        self._pool = pool
        self._page_size = page_size

    @property
    def num_slots(self) -> int:
        return self._pool.num_slots

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def available(self) -> int:
        """Slots that an allocation can get: free, or evictable at this moment."""
        return self._pool.num_free + self._tree.stats().evictable

    def uncached(self, sequence: Sequence) -> int:
        """Tokens `acquire` would leave to compute; at least 1. Changes nothing."""
        cached = self._tree.peek(
            sequence.tokens[:-1].data, extra_key=sequence.extra_key, cache_salt=sequence.cache_salt
        )
        return sequence.length - cached

    def acquire(self, sequence: Sequence) -> None:
        """Take over what the tree holds beyond what `sequence` has computed, and lock it.

        For a sequence that holds nothing yet, and for one whose prefix others have computed since.
        The last token is always left to compute, for its logits.
        """
        tokens = sequence.tokens[:-1]
        slots = np.empty(len(tokens), dtype=np.int32)
        match = self._tree.match_prefix(
            tokens.data, slots.data, extra_key=sequence.extra_key, cache_salt=sequence.cache_salt
        )
        if match.length > sequence.computed:
            self._move_lock(sequence, match.node)
            self._free_own(sequence)
            sequence.adopt(slots[: match.length])

    def allocate(self, sequence: Sequence, until: int) -> bool:
        """Slots for the positions up to `until`, evicting the shortfall.

        False, with nothing changed, if free and evictable slots together are too few.
        """
        count = until - sequence.allocated
        shortfall = count - self._pool.num_free
        if shortfall > 0:
            if shortfall > self._tree.stats().evictable:
                return False
            self._pool.free(np.frombuffer(self._tree.evict(shortfall), dtype=np.int32))
        if count > 0:
            sequence.extend_slots(self._pool.alloc(count))
        return True

    def checkpoint(self, sequence: Sequence) -> None:
        """Give the tree the whole pages computed, so that others match them at once.

        Where prompt and output meet the tree gets a node boundary: the output can be evicted alone.
        """
        for end in (min(sequence.prompt_length, sequence.computed), sequence.computed):
            aligned = end - end % self._page_size
            if aligned > sequence.owned_from:
                self._insert(sequence, aligned)

    def release(self, sequence: Sequence) -> None:
        """The one way out: keep in the tree what is computed, unlock it, free the rest.

        The last token of an answer that ended by length was never computed and is not kept.
        """
        self.checkpoint(sequence)
        self._free_own(sequence)
        if sequence.receipt is not None:
            self._tree.unlock(sequence.receipt)
            sequence.receipt = None
        sequence.computed = sequence.owned_from = sequence.allocated = 0

    def flush(self) -> int:
        """Empty the tree, which nobody may hold. Returns the tokens dropped."""
        slots = np.frombuffer(self._tree.reset(), dtype=np.int32)
        self._pool.free(slots)
        return len(slots)

    def check(self, held: list[Sequence]) -> None:
        """Raise CacheError unless every slot is accounted for once, `held` being all sequences."""
        self._tree.check()
        stats = self._tree.stats()
        own = sum(sequence.allocated - sequence.owned_from for sequence in held)
        total = self._pool.num_free + stats.evictable + stats.protected + own
        locks = sum(sequence.receipt is not None for sequence in held)
        if total != self._pool.num_slots or locks != stats.locks:
            raise CacheError(
                f"free {self._pool.num_free} + evictable {stats.evictable} + protected "
                f"{stats.protected} + own {own} = {total} of {self._pool.num_slots} slots; "
                f"{stats.locks} locks for {locks} holders"
            )

    def _insert(self, sequence: Sequence, end: int) -> None:
        tokens = sequence.tokens[:end]
        inserted = self._tree.insert(
            tokens.data,
            sequence.slots[:end].astype(np.int32).data,
            owned_from=sequence.owned_from,
            counted_to=sequence.counted_to,
            extra_key=sequence.extra_key,
            cache_salt=sequence.cache_salt,
        )
        self._move_lock(sequence, inserted.node)
        sequence.counted_to = max(sequence.counted_to, end)
        if inserted.duplicates:
            self._remap(sequence, end, inserted.duplicates)
        else:
            sequence.owned_from = end

    def _remap(self, sequence: Sequence, end: int, duplicates: list[tuple[int, int]]) -> None:
        """Another request computed these tokens first: use the tree's slots, free the own ones."""
        for start, stop in duplicates:
            self._pool.free(sequence.slots[start:stop])
        slots = np.empty(end, dtype=np.int32)
        self._tree.match_prefix(
            sequence.tokens[:end].data,
            slots.data,
            extra_key=sequence.extra_key,
            cache_salt=sequence.cache_salt,
        )
        sequence.adopt(slots)

    def _free_own(self, sequence: Sequence) -> None:
        self._pool.free(sequence.slots[sequence.owned_from :])
        sequence.allocated = sequence.owned_from

    def _move_lock(self, sequence: Sequence, node: int) -> None:
        receipt = self._tree.lock(node)  # before the unlock, so that nothing between is evictable
        if sequence.receipt is not None:
            self._tree.unlock(sequence.receipt)
        sequence.receipt = receipt
