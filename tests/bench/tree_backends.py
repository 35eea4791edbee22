"""The trees that are measured: ours, call by call and fused, and SGLang 0.5.22 where installed."""

from __future__ import annotations

import types
from array import array
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from radix_rs import Tree, derive_hash_key
from replica.slot_ranges import from_bytes, to_slots
from tests.bench.tree_workloads import Slots, Tokens

T = TypeVar("T")


class Timed:
    def __init__(self) -> None:
        self.times_ns: dict[str, list[int]] = defaultdict(list)

    def timed(self, name: str, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        start = perf_counter_ns()
        answer = call(*args, **kwargs)
        self.times_ns[name].append(perf_counter_ns() - start)
        return answer


def make_tree(page_size: int, **arguments: Any) -> Tree:
    block_size = max(page_size, 16)
    key = derive_hash_key(b"bench")
    return Tree(page_size=page_size, block_size=block_size, hash_key=key, model="m", **arguments)


class Fused(Timed):
    """Ours, one call for each step of a request. Deltas are drained as after an engine's step."""

    name = "ours"

    def __init__(self, page_size: int) -> None:
        super().__init__()
        self.tree = make_tree(page_size)

    def key(self, tokens: Tokens) -> Tokens:
        """A copy, as the reference is given one: what was just written is in the cache."""
        return tokens.copy()

    def admit(self, key: Tokens, length: int) -> tuple[Slots, int]:
        out = np.empty(length, dtype=np.int32)
        admitted = self.timed("admit", self.tree.admit, key, out)
        return out[: admitted.length].copy(), admitted.receipt

    def checkpoint(self, key: Tokens, row: Slots, lock: int, owned_from: int) -> tuple[Slots, int]:
        done = self.timed(
            "checkpoint", self.tree.checkpoint, key, row, receipt=lock, owned_from=owned_from
        )
        self.timed("drain", self.tree.drain_deltas)
        return to_slots(from_bytes(done.freed)), done.receipt

    def finish(self, key: Tokens, row: Slots, lock: int, owned_from: int) -> Slots:
        freed = self.timed(
            "finish", self.tree.finish, key, row, receipt=lock, owned_from=owned_from
        )
        self.timed("drain", self.tree.drain_deltas)
        return to_slots(from_bytes(freed))

    def evict(self, count: int) -> Slots:
        return to_slots(from_bytes(self.timed("evict", self.tree.evict, count)))

    def evictable(self) -> int:
        return self.tree.stats().evictable


class Small(Fused):
    """Ours, the small calls, as the reference makes them."""

    name = "ours, small calls"

    def admit(self, key: Tokens, length: int) -> tuple[Slots, int]:
        out = np.empty(length, dtype=np.int32)
        match = self.timed("match", self.tree.match_prefix, key, out)
        return out[: match.length].copy(), self.timed("lock", self.tree.lock, match.node)

    def checkpoint(self, key: Tokens, row: Slots, lock: int, owned_from: int) -> tuple[Slots, int]:
        done = self.timed("insert", self.tree.insert, key, row, owned_from=owned_from)
        moved = self.timed("lock", self.tree.lock, done.node)
        self.timed("unlock", self.tree.unlock, lock)
        freed = np.concatenate([row[:0], *(row[start:end] for start, end in done.duplicates)])
        if done.duplicates:
            self.timed("match", self.tree.match_prefix, key, row)
        self.timed("drain", self.tree.drain_deltas)
        return freed, moved

    def finish(self, key: Tokens, row: Slots, lock: int, owned_from: int) -> Slots:
        done = self.timed("insert", self.tree.insert, key, row, owned_from=owned_from)
        self.timed("unlock", self.tree.unlock, lock)
        self.timed("drain", self.tree.drain_deltas)
        return np.concatenate(
            [row[len(key) :], *(row[start:end] for start, end in done.duplicates)]
        )


class _Sglang(Timed):
    """What both ways to SGLang's tree share: keys and values of 64 bits, tensors."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        torch.set_num_threads(1)
        self.torch = torch

    def value(self, row: Slots) -> Any:
        return self.torch.from_numpy(row.astype(np.int64))

    def slots(self, tensors: list[Any]) -> Slots:
        return np.concatenate(
            [np.empty(0, np.int32), *(t.numpy().astype(np.int32) for t in tensors)]
        )


class SglangRaw(_Sglang):
    """Its compiled core, called directly."""

    name = "sglang 0.5.22, raw extension"

    def __init__(self, page_size: int) -> None:
        super().__init__()
        from sglang.srt.mem_cache.rust_tree_core.extension import bindings

        self.b = bindings
        params = bindings.TreeCoreInitParamsBinding(
            eviction_policy="lru", page_size=page_size, device="cpu"
        )
        self.tree = bindings.RustUnifiedTreeCoreBinding(params, [0])
        self.root = self.tree.root_node_handle(None)

    def key(self, tokens: Tokens) -> array[int]:
        key = array("q")
        key.frombytes(tokens.astype(np.int64).tobytes())
        return key

    def match(self, key: array[int]) -> Any:
        return self.tree.match_prefix(self.b.MatchParamsBinding(key=key))

    def insert(self, key: array[int], row: Slots, owned_from: int) -> tuple[int, list[Any]]:
        value = self.value(row[: len(key)])

        def insert() -> Any:
            return self.tree.begin_insert(
                self.b.InsertParamsBinding(key=key, value=value, prev_prefix_len=owned_from)
            )

        step = self.timed("insert", insert)
        return step.result.last_device_node, [t for action in step.actions for t in action[1]]

    def gather(self, node: int) -> Slots:
        gathered = self.timed("indices", self.tree.collect_full_device_indices, node, self.root)
        return self.slots([gathered])

    def admit(self, key: array[int], length: int) -> tuple[Slots, int]:
        found = self.timed("match", self.match, key)
        node = found.last_device_node_id
        self.timed("lock", self.tree.inc_lock_ref, node, [])
        return self.gather(node)[: found.device_prefix_len], node

    def unlock(self, node: int) -> None:
        self.tree.dec_lock_ref(node, self.b.DecLockRefParamsBinding(node_id=node), False)

    def checkpoint(
        self, key: array[int], row: Slots, lock: int, owned_from: int
    ) -> tuple[Slots, int]:
        node, freed = self.insert(key, row, owned_from)
        self.timed("lock", self.tree.inc_lock_ref, node, [])
        self.timed("unlock", self.unlock, lock)
        given_back = self.slots(freed)
        held = self.gather(node)
        row[: len(held)] = held
        return given_back, node

    def finish(self, key: array[int], row: Slots, lock: int, owned_from: int) -> Slots:
        _, freed = self.insert(key, row, owned_from)
        self.timed("unlock", self.unlock, lock)
        return np.concatenate([self.slots(freed), row[len(key) :]])

    def evict(self, count: int) -> Slots:
        return self.slots(self.timed("evict", self._evict, count))

    def _evict(self, count: int) -> list[Any]:
        tree, got, freed = self.tree, 0, []
        tree.evict_device_start(0, count)
        while (node := tree.evict_device_next_node(0, {0: got}).node_id) is not None:
            leaf = tree.evict_device_leaf(node)
            got += leaf.tracker.get(0, 0)
            for tensors in leaf.new_device_frees.values():
                freed.extend(tensors)
        tree.evict_device_end(0)
        return freed

    def evictable(self) -> int:
        return int(self.tree.evictable_size())


class SglangUnified(_Sglang):
    """The cache its scheduler calls, on the compiled core."""

    name = "sglang 0.5.22, UnifiedRadixCache"

    def __init__(self, page_size: int) -> None:
        super().__init__()
        from sglang.srt.mem_cache import base_prefix_cache
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.base, self.radix_key = base_prefix_cache, RadixKey
        self.freed: list[Any] = []
        allocator = types.SimpleNamespace(
            device=self.torch.device("cpu"),
            free_segment=lambda slots, start_pos=0: self.freed.append(slots),
            free_full_segment=lambda slots, start_pos=0: self.freed.append(slots),
            available_size=lambda: 0,
        )
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=allocator,
                page_size=page_size,
                eviction_policy="lru",
                tree_components=(ComponentType.FULL,),
                tree_core_backend="rust",
            )
        )

    def key(self, tokens: Tokens) -> Any:
        key = array("q")
        key.frombytes(tokens.astype(np.int64).tobytes())
        return self.radix_key(key)

    def match(self, key: Any) -> Any:
        return self.cache.match_prefix(self.base.MatchPrefixParams(key=key))

    def take_freed(self) -> Slots:
        freed, self.freed = self.freed, []
        return self.slots(freed)

    def insert(self, key: Any, row: Slots, owned_from: int) -> Any:
        value = self.value(row[: len(key)])

        def insert() -> Any:
            params = self.base.InsertParams(key=key, value=value, prev_prefix_len=owned_from)
            return self.cache.insert(params)

        return self.timed("insert", insert).last_device_node

    def gather(self, node: Any) -> Slots:
        return self.slots([self.timed("indices", self.cache.path_device_indices, node)])

    def admit(self, key: Any, length: int) -> tuple[Slots, Any]:
        found = self.timed("match", self.match, key)
        lock = self.timed("lock", self.cache.lock, found.last_device_node)
        return self.gather(found.last_device_node)[: found.device_prefix_len], lock

    def checkpoint(self, key: Any, row: Slots, lock: Any, owned_from: int) -> tuple[Slots, Any]:
        node = self.insert(key, row, owned_from)
        moved = self.timed("lock", self.cache.lock, node)
        self.timed("unlock", self.cache.unlock, lock)
        freed = self.take_freed()
        held = self.gather(node)
        row[: len(held)] = held
        return freed, moved

    def finish(self, key: Any, row: Slots, lock: Any, owned_from: int) -> Slots:
        self.insert(key, row, owned_from)
        self.timed("unlock", self.cache.unlock, lock)
        return np.concatenate([self.take_freed(), row[len(key) :]])

    def evict(self, count: int) -> Slots:
        self.timed("evict", self.cache.evict, self.base.EvictParams(num_tokens=count))
        return self.take_freed()

    def evictable(self) -> int:
        return int(self.cache.tree_core.evictable_size())


def reference_backends() -> tuple[list[Callable[[int], Any]], str]:
    """SGLang's trees, or none and why not."""
    makers: list[Callable[[int], Any]] = [SglangRaw, SglangUnified]
    try:
        for make in makers:
            make(1)
    except Exception as error:  # whatever its long chain of imports lacks; the reader is told
        return [], f"sglang 0.5.22 is not measured: {error!r}"
    return makers, ""
