"""Looking a key up again from where it stood: the same answer as from the start, at less cost."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from proto.prefixlb.v1.delta_pb2 import DeltaBatch, DeltaEvent, Expected
from radix_rs import chain_hashes, derive_hash_key
from replica.py_tree import PyTree
from replica.tree_error import TreeError
from tests.both_cores import BothCores, Handles
from tests.model import PLAIN, Namespace

KEY = derive_hash_key(b"a secret")
NAMESPACES = [PLAIN, ("lora", ""), ("", "tenant")]


def both_cores(page_size: int) -> BothCores:
    return BothCores(page_size=page_size, block_size=4, hash_key=KEY, model="m")


def announced(id: int, tokens: list[int], held: int, namespace: Namespace) -> bytes:
    """By its definition: the whole blocks that end beyond `held` tokens."""
    extra_key, cache_salt = namespace
    hashes = chain_hashes(
        np.array(tokens, dtype=np.uint32),
        hash_key=KEY,
        model="m",
        block_size=4,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )[held // 4 :]
    event = DeltaEvent(expected=Expected(id=id, start=held // 4, hashes=hashes))
    return DeltaBatch(events=[event] if hashes else []).SerializeToString()


@dataclass
class Waiting:
    namespace: Namespace
    tokens: list[int]
    node: Handles | None = None
    length: int = 0


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_from_where_it_stood_a_key_is_found_as_from_the_start(page_size: int, seed: int) -> None:
    rng = random.Random(seed)
    trees = both_cores(page_size)

    def key() -> list[int]:
        return [rng.randrange(2) for _ in range(rng.randrange(24))]

    waiting = [Waiting(rng.choice(NAMESPACES), key()) for _ in range(12)]
    slot = 0
    for _ in range(120):
        match rng.randrange(8):
            case 0:
                trees.evict(rng.randrange(12))
            case 1:
                trees.match_prefix(key(), rng.choice(NAMESPACES))
            case 2 if rng.random() < 0.05:
                trees.reset()
            case 3:
                rng.choice(waiting).tokens.extend(key()[:3])
            case _:
                tokens = key() if rng.random() < 0.5 else rng.choice(waiting).tokens
                trees.insert(tokens, range(slot, slot + len(tokens)), rng.choice(NAMESPACES))
                slot += len(tokens)
        for each in rng.sample(waiting, 4):
            found = trees.find(each.tokens, each.node, each.length, each.namespace)
            assert found.length == trees.peek(each.tokens, each.namespace)
            told = trees.expected(7, each.tokens, each.node, each.length, each.namespace)
            assert told == announced(7, each.tokens, found.length, each.namespace)
            each.node, each.length = found.node, found.length
            depth = 0
            above: Handles | None = found.node
            while above := trees.parent(above):
                depth += 1
            assert (depth > 0) == (found.length > 0), "a match lies in a node, none at a root"


def test_the_node_found_is_the_one_a_match_splits() -> None:
    trees = both_cores(1)
    whole = trees.insert([1, 2, 3, 4], range(4)).node
    found = trees.find([1, 2, 9])
    assert (found.length, found.node) == (2, whole)
    upper = trees.match_prefix([1, 2, 9]).node
    assert trees.parent(whole) == upper
    again = trees.find([1, 2, 9], found.node, found.length)
    assert (again.length, again.node) == (2, upper)


def test_a_key_that_ended_inside_an_edge_goes_on_when_it_has_grown() -> None:
    trees = both_cores(1)
    trees.insert([1, 2, 3, 4, 5], range(5))
    found = trees.find([1, 2])
    assert trees.find([1, 2, 3, 4, 9], found.node, found.length).length == 4


@pytest.mark.parametrize("length", [1, 3, 6, 2**40])
def test_a_length_that_was_never_said_is_not_believed(length: int) -> None:
    trees = both_cores(2)
    node = trees.insert([1, 2, 3, 4], range(4)).node
    found = trees.find([1, 2, 8, 8], node, length)
    assert (found.length, found.node) == (2, node)


def test_nothing_of_one_namespace_is_found_in_another_when_it_comes_later() -> None:
    trees = both_cores(1)
    found = trees.find([1, 2], namespace=("", "tenant"))
    trees.insert([1, 2], [0, 1])
    assert trees.find([1, 2], found.node, found.length, ("", "tenant")).length == 0


def test_a_tree_that_stores_nothing_expects_nothing() -> None:
    trees = BothCores(page_size=1, block_size=4, hash_key=KEY, model="m", disabled=True)
    assert trees.expected(1, range(100)) == b""


def test_the_parent_of_a_node_that_is_gone_is_an_error() -> None:
    trees = both_cores(1)
    node = trees.insert([1, 2], [0, 1]).node
    trees.evict(2)
    with pytest.raises(TreeError, match="unknown node"):
        trees.parent(node)


def test_what_was_compared_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counting(a: np.ndarray, b: np.ndarray) -> int:
        nonlocal compared
        shorter = min(len(a), len(b))
        differs = np.flatnonzero(a[:shorter] != b[:shorter])
        common = int(differs[0]) if len(differs) else shorter
        compared += common
        return common

    monkeypatch.setattr("replica.py_tree.structure.common_prefix", counting)
    tree = PyTree(page_size=1, block_size=4, hash_key=KEY, model="m")
    key = np.arange(9000, dtype=np.uint32)
    tree.insert(key[:8000], np.arange(8000, dtype=np.int32))
    found = tree.find(key)
    assert (found.length, compared) == (8000, 8000)
    tree.insert(key[:8100], np.arange(8100, dtype=np.int32))
    compared = 0
    for _ in range(10):
        found = tree.find(key, node=found.node, length=found.length)
    assert (found.length, compared) == (8100, 100)
