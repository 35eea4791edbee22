"""The only bridge between tree and pool: who holds which slots, and how they come and go."""

from replica.pool import Pool
from replica.sequence import Namespace, Sequence
from replica.slot_ranges import from_bytes, to_ranges
from replica.tree_core import TreeCore


class CacheError(Exception):
    """Slots are unaccounted for; the message has the numbers."""


class Cache:
    """Every slot is free, the tree's (evictable or protected), or a sequence's own."""

    def __init__(self, tree: TreeCore, pool: Pool) -> None:
        self._tree = tree
        self._pool = pool
        self.changes = 0
        """Counts what can make a look-up come out otherwise than the one before."""

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

    def look_up(self, sequence: Sequence) -> None:
        """How much the tree holds of one that waits: `cached`, at most all but the last token.

        Goes on from where the look-up before ended, so it costs what has changed since.
        """
        found = self._tree.find(
            sequence.reusable, node=sequence.node, length=sequence.cached, **sequence.namespace
        )
        sequence.cached, sequence.node = found.length, found.node

    def parent(self, node: int) -> int | None:
        """The tree's node above the one in which a look-up ended; None above a root."""
        return self._tree.parent(node)

    def acquire(self, sequence: Sequence) -> None:
        """Take over what the tree holds beyond what `sequence` has computed, and lock it.

        For a sequence that holds nothing yet, and for one whose prefix others have computed since.
        The last token is always left to compute, for its logits.
        """
        own = to_ranges(sequence.slots[sequence.owned_from :])
        admitted = self._tree.admit(
            sequence.reusable, sequence.room, receipt=sequence.receipt, **sequence.namespace
        )
        sequence.receipt, sequence.node = admitted.receipt, admitted.node
        sequence.cached = admitted.length
        if admitted.length > sequence.computed:
            self._pool.free(own)
            sequence.owned_from = sequence.allocated = sequence.computed = admitted.length

    def allocate(self, sequence: Sequence, until: int) -> bool:
        """Slots for the positions up to `until`, evicting the shortfall.

        False, with nothing changed, if free and evictable slots together are too few.
        """
        count = until - sequence.allocated
        shortfall = count - self._pool.num_free
        if shortfall > 0:
            if shortfall > self._tree.stats().evictable:
                return False
            self._free(self._tree.evict(shortfall))
            self.changes += 1
        if count > 0:
            sequence.extend_slots(self._pool.alloc(count))
        return True

    def checkpoint(self, sequence: Sequence) -> None:
        """Give the tree the whole pages computed, so that others match them at once.

        What others computed first is theirs: the sequence goes on with the tree's slots.
        """
        done = self._tree.checkpoint(
            sequence.keys[: sequence.computed].data, sequence.slots.data, **_claim(sequence)
        )
        self._free(done.freed)
        self.changes += 1
        sequence.receipt, sequence.node = done.receipt, done.node
        sequence.cached = sequence.owned_from = done.length
        sequence.counted_to = max(sequence.counted_to, done.length)

    def release(self, sequence: Sequence) -> None:
        """The one way out: keep in the tree what is computed, unlock it, free the rest.

        The last token of an answer that ended by length was never computed and is not kept.
        """
        if sequence.receipt is None:
            return
        if sequence.allocated == sequence.owned_from:
            self._tree.unlock(sequence.receipt)  # no use of it: it computed nothing since
        else:
            freed = self._tree.finish(
                sequence.keys[: sequence.computed].data, sequence.slots.data, **_claim(sequence)
            )
            self._free(freed)
            self.changes += 1
        sequence.receipt = None
        sequence.computed = sequence.owned_from = sequence.allocated = 0

    def flush(self) -> int:
        """Empty the tree, which nobody may hold. Returns the tokens dropped."""
        self.changes += 1
        return self._free(self._tree.reset())

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

    def _free(self, ranges: bytes) -> int:
        return self._pool.free(from_bytes(ranges))


class _Claim(Namespace):
    receipt: int
    owned_from: int
    counted_to: int
    prompt_length: int
    priority: int


def _claim(sequence: Sequence) -> _Claim:
    """What an acquired sequence tells the tree of itself when it hands over what it computed."""
    assert sequence.receipt is not None
    return {
        "receipt": sequence.receipt,
        "owned_from": sequence.owned_from,
        "counted_to": sequence.counted_to,
        "prompt_length": sequence.prompt_length,
        "priority": sequence.priority,
        **sequence.namespace,
    }
