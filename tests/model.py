"""The tree as a set of prefixes: plainly right, and slow."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from radix_rs import chain_hashes

Namespace = tuple[str, str]
"""(extra_key, cache_salt)"""

Prefix = tuple[Namespace | int, ...]
"""A namespace and the tokens after it, so that prefixes of two namespaces never meet."""

PLAIN: Namespace = ("", "")


OPTIONS: dict[str, set[str]] = {
    "lru": set(),
    "lfu": set(),
    "slru": {"threshold"},
    "priority": set(),
    "tlru": {"threshold", "next_prompt_estimate"},
    "fifo": set(),
    "mru": set(),
    "filo": set(),
}
"""The policies, each with the names of its options."""


class ModelError(Exception):
    """What the tree answers with a TreeError."""


@dataclass(eq=False)
class End:
    """A node, by the prefix it ends at. Evicted and stored again, it is another one."""

    prefix: Prefix
    last_used: int = 0
    created: int = 0
    lock_ref: int = 0
    hits: int = 0
    priority: int = 0
    longest: int = 0
    """Tokens of the longest key inserted through it."""


@dataclass
class Inserted:
    prefix_length: int
    node: End
    duplicates: list[tuple[int, int]]


class Model:
    """`pages` maps every cached prefix to the slots of its last page; `ends` says where nodes end.

    A node reaches from its own end up to the next shorter one. The root ends at the empty prefix.
    """

    def __init__(
        self,
        *,
        page_size: int,
        block_size: int,
        hash_key: bytes,
        model: str,
        policy: str = "lru",
        policy_options: Mapping[str, int] | None = None,
    ) -> None:
        self.policy = policy
        self.options = policy_options or {}
        if policy not in OPTIONS or not self.options.keys() <= OPTIONS[policy]:
            raise ModelError(f"{policy}, {self.options}")
        self.page_size = page_size
        self.block_size = block_size
        self.hash_key = hash_key
        self.model = model
        self.pages: dict[Prefix, list[int]] = {}
        self.ends: dict[Prefix, End] = {}
        self.root = End(())
        self.receipts: dict[int, End] = {}
        self.num_locks = 0
        self.clock = 0
        self.evicted_total = 0
        self._hashes: dict[Prefix, int] = {}

    def peek(self, tokens: Sequence[int], namespace: Namespace = PLAIN) -> int:
        whole = len(tokens) - len(tokens) % self.page_size
        key: Prefix = (namespace, *tokens)
        lengths = range(whole, 0, -self.page_size)
        return next((length for length in lengths if key[: 1 + length] in self.pages), 0)

    def match_prefix(
        self, tokens: Sequence[int], namespace: Namespace = PLAIN
    ) -> tuple[int, End, list[int]]:
        length = self.peek(tokens, namespace)
        if length == 0:
            return 0, self.root, []
        prefix: Prefix = (namespace, *tokens[:length])
        self._split(prefix)
        self._touch(prefix)
        return length, self.ends[prefix], self._slots(prefix, 0)

    def insert(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        *,
        owned_from: int = 0,
        counted_to: int = 0,
        priority: int = 0,
        namespace: Namespace = PLAIN,
    ) -> Inserted:
        whole = len(tokens) - len(tokens) % self.page_size
        held = self.peek(tokens, namespace)
        if min(owned_from, whole) > held:
            raise ModelError(f"{owned_from=}, {held=}")
        if whole == 0:
            return Inserted(0, self.root, [])
        key: Prefix = (namespace, *tokens[:whole])
        if held:
            self._split(key[: 1 + held])
        if held < whole:
            self.ends[key] = End(key, created=self.clock + 1, priority=priority)
            for start in range(held, whole, self.page_size):
                stop = start + self.page_size
                self.pages[key[: 1 + stop]] = list(slots[start:stop])
        self._touch(key)
        for end in self._path(key):
            node = self.ends[end]
            node.hits += len(end) - 1 > counted_to
            node.priority = max(node.priority, priority)
            node.longest = max(node.longest, whole)
        duplicates = [(owned_from, held)] if owned_from < held else []
        return Inserted(held, self.ends[key], duplicates)

    def is_live(self, node: End) -> bool:
        return node is self.root or self.ends.get(node.prefix) is node

    def lock(self, node: End) -> int:
        if not self.is_live(node):
            raise ModelError("unknown node")
        for end in self._path(node.prefix):
            self.ends[end].lock_ref += 1
        self.num_locks += 1
        self.receipts[self.num_locks] = node
        return self.num_locks

    def unlock(self, receipt: int) -> None:
        if receipt not in self.receipts:
            raise ModelError("unknown receipt")
        for end in self._path(self.receipts.pop(receipt).prefix):
            self.ends[end].lock_ref -= 1

    def checkpoint(
        self,
        tokens: Sequence[int],
        slots: list[int],
        receipt: int,
        *,
        owned_from: int = 0,
        counted_to: int = 0,
        prompt_length: int = 0,
        priority: int = 0,
        namespace: Namespace = PLAIN,
    ) -> tuple[int, int, End, int, list[int]]:
        """The small calls it stands for, on `slots` as the caller's buffer."""
        if receipt not in self.receipts:
            raise ModelError("unknown receipt")
        whole = len(tokens) - len(tokens) % self.page_size
        if owned_from > whole:
            raise ModelError(f"{owned_from=}, {whole=}")
        done = self.insert(
            tokens,
            slots,
            owned_from=owned_from,
            counted_to=counted_to,
            priority=priority,
            namespace=namespace,
        )
        prompt = min(prompt_length, len(tokens)) // self.page_size * self.page_size
        if 0 < prompt < whole:
            self.insert(
                tokens[:prompt],
                slots,
                owned_from=prompt,
                counted_to=prompt,
                priority=priority + 1,
                namespace=namespace,
            )
        length, node, held = self.match_prefix(tokens, namespace)
        freed = slots[owned_from : done.prefix_length]
        slots[owned_from:length] = held[owned_from:]
        moved = self.lock(node)
        self.unlock(receipt)
        return length, done.prefix_length, node, moved, freed

    def finish(
        self, tokens: Sequence[int], slots: list[int], receipt: int, **claim: Any
    ) -> list[int]:
        length, _, _, moved, freed = self.checkpoint(tokens, slots, receipt, **claim)
        self.unlock(moved)
        return freed + slots[length:]

    def evict(self, num_tokens: int) -> list[int]:
        freed: list[int] = []
        while len(freed) < num_tokens and (leaves := self._evictable()):
            leaf = min(leaves, key=self._rank)
            start = self._start(leaf)
            freed += self._slots(leaf, start)
            for length in range(len(leaf) - 1, start, -self.page_size):
                del self.pages[leaf[: 1 + length]]
            del self.ends[leaf]
        self.evicted_total += len(freed)
        return freed

    def reset(self) -> list[int]:
        if self.receipts:
            raise ModelError(f"{len(self.receipts)} locks are held")
        slots = self.all_slots()
        self.pages.clear()
        self.ends.clear()
        self.root = End(())
        return slots

    def all_slots(self) -> list[int]:
        return [slot for page in self.pages.values() for slot in page]

    def blocks(self) -> set[int]:
        """Chain hashes of the cached whole blocks."""
        whole = [prefix for prefix in self.pages if (len(prefix) - 1) % self.block_size == 0]
        return {self._hash(prefix) for prefix in whole}

    def sizes(self) -> tuple[int, int]:
        """Tokens that are evictable and protected."""
        locked = [len(self._node_slots(end)) for end in self.ends if self.ends[end].lock_ref]
        return len(self.all_slots()) - sum(locked), sum(locked)

    def dump(self) -> str:
        lines = ["root"]
        namespace = PLAIN
        for end in sorted(self.ends):
            mine = end[0]
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
            self.ends[prefix] = replace(self.ends[min(below, key=len)], prefix=prefix)

    def _touch(self, prefix: Prefix) -> None:
        for end in self._path(prefix):
            self.clock += 1
            self.ends[end].last_used = self.clock

    def _evictable(self) -> list[Prefix]:
        inner = {end[:n] for end in self.ends for n in range(len(end))}
        return [end for end, node in self.ends.items() if end not in inner and not node.lock_ref]

    def _rank(self, end: Prefix) -> tuple[int, int]:
        """Of two leaves the one with the smaller rank is evicted first."""
        node = self.ends[end]
        match self.policy:
            case "lru":
                return 0, node.last_used
            case "lfu":
                return node.hits, node.last_used
            case "slru":
                return node.hits >= self.options.get("threshold", 2), node.last_used
            case "priority":
                return node.priority, node.last_used
            case "tlru":
                growth = self.options.get("next_prompt_estimate", 0)
                growth -= self.options.get("threshold", 0)
                safe = self._start(end) >= max(node.longest + growth, 0)
                return -1 if safe else 0, node.last_used
            case "fifo":
                return 0, node.created
            case "mru":
                return 0, -node.last_used
            case "filo":
                return 0, -node.created
            case unknown:
                raise ModelError(unknown)

    def _start(self, end: Prefix) -> int:
        """Tokens above the node that ends here."""
        above = [node for node in self._path(end) if node != end]
        return len(above[-1]) - 1 if above else 0

    def _node_slots(self, end: Prefix) -> list[int]:
        return self._slots(end, self._start(end))

    def _slots(self, prefix: Prefix, start: int) -> list[int]:
        ends = range(start + self.page_size, len(prefix), self.page_size)
        return [slot for end in ends for slot in self.pages[prefix[: 1 + end]]]

    def _hash(self, prefix: Prefix) -> int:
        if prefix not in self._hashes:
            self._hashes[prefix] = self._chain(prefix)[-1]
        return self._hashes[prefix]

    def _chain(self, prefix: Prefix) -> list[int]:
        namespace, *tokens = prefix
        assert isinstance(namespace, tuple)
        return chain_hashes(
            array("I", [token for token in tokens if isinstance(token, int)]),
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
