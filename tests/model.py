"""The tree as a set of prefixes: plainly right, and slow."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from radix_rs import chain_hashes

Namespace = tuple[str, str]
"""(extra_key, cache_salt)"""

Prefix = tuple[Namespace | int, ...]
"""A namespace and the tokens after it, so that prefixes of two namespaces never meet."""

PLAIN: Namespace = ("", "")


class ModelError(Exception):
    """What the tree answers with a TreeError."""


@dataclass
class End:
    """A prefix at which a node ends."""

    last_used: int = 0
    lock_ref: int = 0
    hits: int = 0


@dataclass
class Inserted:
    prefix_length: int
    node: Prefix
    duplicates: list[tuple[int, int]]


class Model:
    """`slots` maps every cached prefix to the slot of its last token; `ends` says where nodes end.

    A node is named by the prefix it ends at; the empty prefix is the root. The node of a longer
    prefix reaches up to the next shorter end.
    """

    def __init__(self, *, page_size: int, block_size: int, hash_key: bytes, model: str) -> None:
        self.page_size = page_size
        self.block_size = block_size
        self.hash_key = hash_key
        self.model = model
        self.slots: dict[Prefix, int] = {}
        self.ends: dict[Prefix, End] = {}
        self.receipts: list[Prefix] = []
        self.clock = 0
        self.evicted_total = 0

    def peek(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> int:
        whole = len(tokens) - len(tokens) % self.page_size
        key: Prefix = (namespace, *tokens)
        lengths = range(whole, 0, -self.page_size)
        return next((length for length in lengths if key[: 1 + length] in self.slots), 0)

    def match_prefix(
        self, tokens: Sequence[int], namespace: Namespace = PLAIN
    ) -> tuple[int, Prefix, list[int]]:
        length = self.peek(tokens, namespace)
        if length == 0:
            return 0, (), []
        node: Prefix = (namespace, *tokens[:length])
        self._split(node)
        self._touch(node)
        return length, node, [self.slots[node[: 1 + n]] for n in range(1, 1 + length)]

    def insert(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        *,
        owned_from: int = 0,
        counted_to: int = 0,
        namespace: Namespace = PLAIN,
    ) -> Inserted:
        whole = len(tokens) - len(tokens) % self.page_size
        held = self.peek(tokens, namespace)
        if min(owned_from, whole) > held:
            raise ModelError(f"{owned_from=}, {held=}")
        if whole == 0:
            return Inserted(0, (), [])
        key: Prefix = (namespace, *tokens[:whole])
        if held:
            self._split(key[: 1 + held])
        if held < whole:
            self.ends[key] = End()
            for length in range(held + 1, whole + 1):
                self.slots[key[: 1 + length]] = slots[length - 1]
        self._touch(key)
        for end in self._path(key):
            if len(end) - 1 > counted_to:
                self.ends[end].hits += 1
        duplicates = [(owned_from, held)] if owned_from < held else []
        return Inserted(held, key, duplicates)

    def lock(self, node: Prefix) -> None:
        for end in self._path(node):
            self.ends[end].lock_ref += 1
        self.receipts.append(node)

    def unlock(self, node: Prefix) -> None:
        self.receipts.remove(node)
        for end in self._path(node):
            self.ends[end].lock_ref -= 1

    def evict(self, num_tokens: int) -> list[int]:
        freed: list[int] = []
        while len(freed) < num_tokens and (leaves := self._evictable()):
            leaf = min(leaves, key=lambda end: self.ends[end].last_used)
            freed += self._node_slots(leaf)
            for length in range(self._start(leaf) + 1, len(leaf)):
                del self.slots[leaf[: 1 + length]]
            del self.ends[leaf]
        self.evicted_total += len(freed)
        return freed

    def reset(self) -> list[int]:
        if self.receipts:
            raise ModelError(f"{len(self.receipts)} locks are held")
        slots = list(self.slots.values())
        self.slots.clear()
        self.ends.clear()
        return slots

    def blocks(self) -> set[int]:
        """Chain hashes of the cached whole blocks."""
        return {
            self._chain(prefix)[-1]
            for prefix in self.slots
            if (len(prefix) - 1) % self.block_size == 0
        }

    def sizes(self) -> tuple[int, int]:
        """Tokens that are evictable and protected."""
        locked = [len(self._node_slots(end)) for end in self.ends if self.ends[end].lock_ref]
        return len(self.slots) - sum(locked), sum(locked)

    def dump(self) -> str:
        lines = ["root"]
        namespace = PLAIN
        for end in sorted(self.ends):
            (mine,) = end[:1]
            assert isinstance(mine, tuple)
            if mine != namespace:
                namespace = mine
                lines.append(f'root extra_key="{mine[0]}" cache_salt="{mine[1]}"')
            node = self.ends[end]
            depth = sum(1 for _ in self._path(end))
            lines.append(
                "  " * depth
                + f"{len(self._node_slots(end))} lock={node.lock_ref} hits={node.hits} "
                + f"slots={ranges(self._node_slots(end))}"
            )
        return "\n".join(lines) + "\n"

    def _path(self, prefix: Prefix) -> Iterator[Prefix]:
        """The nodes from the root to this prefix, the root apart."""
        return (prefix[:n] for n in range(2, 1 + len(prefix)) if prefix[:n] in self.ends)

    def _split(self, prefix: Prefix) -> None:
        if prefix not in self.ends:
            below = [end for end in self.ends if end[: len(prefix)] == prefix]
            self.ends[prefix] = replace(self.ends[min(below, key=len)])

    def _touch(self, prefix: Prefix) -> None:
        for end in self._path(prefix):
            self.clock += 1
            self.ends[end].last_used = self.clock

    def _evictable(self) -> list[Prefix]:
        inner = {end[:n] for end in self.ends for n in range(len(end))}
        return [end for end, node in self.ends.items() if end not in inner and not node.lock_ref]

    def _start(self, end: Prefix) -> int:
        """Tokens above the node that ends here."""
        above = [node for node in self._path(end) if node != end]
        return len(above[-1]) - 1 if above else 0

    def _node_slots(self, end: Prefix) -> list[int]:
        return [self.slots[end[: 1 + n]] for n in range(self._start(end) + 1, len(end))]

    def _chain(self, prefix: Prefix) -> list[int]:
        (namespace,) = prefix[:1]
        assert isinstance(namespace, tuple)
        return chain_hashes(
            array("I", prefix[1:]),
            hash_key=self.hash_key,
            model=self.model,
            block_size=self.block_size,
            extra_key=namespace[0],
            cache_salt=namespace[1],
        )


def ranges(slots: Sequence[int]) -> str:
    """Slots as half-open ranges: "0..3,7..8"; "none" where there are none."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot:
            runs[-1][1] += 1
        else:
            runs.append([slot, slot + 1])
    return ",".join(f"{start}..{end}" for start, end in runs) or "none"
