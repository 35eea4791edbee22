"""Wrong and extreme arguments: a clear error with nothing changed, or the right result."""

import gc
import mmap
import sys
from array import array
from collections.abc import Callable

import numpy as np
import pytest

import radix_rs
from radix_rs import Router, Tree, chain_hashes, derive_hash_key
from replica.py_tree import PyTree, chain
from replica.tree_error import TreeError
from tests.both_cores import numbers

KEY = derive_hash_key(b"a secret")
N = 8

AnyTree = Tree | PyTree
Make = Callable[..., AnyTree]


@pytest.fixture(params=[Tree, PyTree], ids=["rust", "python"])
def core(request: pytest.FixtureRequest) -> Make:
    return request.param


@pytest.fixture
def make(core: Make) -> Make:
    def make(page_size: int = 1, block_size: int = 4, **arguments: object) -> AnyTree:
        return core(
            page_size=page_size, block_size=block_size, hash_key=KEY, model="m", **arguments
        )

    return make


@pytest.fixture
def part(core: Make) -> int:
    """The Python core gets a part of what the compiled one can take in a second."""
    return 50 if core is PyTree else 1


@pytest.fixture
def tree(make: Make) -> AnyTree:
    tree = make()
    tree.insert(u32(range(N)), i32(range(N)))
    return tree


def u32(tokens: object) -> np.ndarray:
    return np.array(tokens, dtype=np.uint32)


def i32(slots: object) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


def fails_unchanged(tree: AnyTree, message: str, call: Callable[[], object]) -> None:
    before = (tree.dump(), tree.count_digest(), tree.stats().locks)
    with pytest.raises(TreeError, match=message):
        call()
    assert (tree.dump(), tree.count_digest(), tree.stats().locks) == before
    tree.check()
    assert tree.match_prefix(u32(range(N)), i32([0] * N)).length == N, "the tree stays usable"


BUFFERS = [
    (np.arange(N, dtype=np.int64), "format 'l'"),
    (np.arange(N, dtype=np.float32), "format 'f'"),
    (np.arange(N, dtype=np.uint16), "format 'H'"),
    (np.arange(N, dtype=">u4"), "format '>I'"),
    (np.arange(2 * N, dtype=np.uint32)[::2], r"strides \[8\]"),
    (np.arange(N, dtype=np.uint32)[::-1], r"strides \[-4\]"),
    (np.arange(N, dtype=np.uint32).reshape(2, N // 2), r"shape \[2, 4\]"),
    (np.array(7, dtype=np.uint32), "<class 'numpy.ndarray'>"),
    (np.frombuffer(bytes(4 * N + 1), dtype=np.uint8)[1:].view(np.uint32), "not aligned"),
    (b"12345678", "format 'B'"),
    ([1, 2, 3], "<class 'list'>"),
    (None, "<class 'NoneType'>"),
    ("text", "<class 'str'>"),
]


@pytest.mark.parametrize(("buffer", "got"), BUFFERS)
def test_a_wrong_tokens_buffer_is_named_with_what_was_expected(
    tree: AnyTree, buffer: object, got: str
) -> None:
    message = f"^tokens: expected a C-contiguous buffer of u32.*, got .*{got}"
    out = i32([0] * 2 * N)
    fails_unchanged(tree, message, lambda: tree.match_prefix(buffer, out))  # type: ignore[arg-type]
    fails_unchanged(tree, message, lambda: tree.insert(buffer, out))  # type: ignore[arg-type]
    fails_unchanged(tree, message, lambda: tree.peek(buffer))  # type: ignore[arg-type]


def test_slots_are_i32_not_u32(tree: AnyTree) -> None:
    message = "^{}: expected a C-contiguous buffer of i32, got items of format 'I'"
    keys, slots = u32(range(N)), u32(range(N))
    fails_unchanged(tree, message.format("slots"), lambda: tree.insert(keys, slots))
    fails_unchanged(tree, message.format("slots_out"), lambda: tree.match_prefix(keys, slots))


def test_slots_out_must_be_writable(tree: AnyTree) -> None:
    out = i32([0] * N)
    out.setflags(write=False)
    fails_unchanged(
        tree,
        "^slots_out: expected a writable buffer, got a read-only one",
        lambda: tree.match_prefix(u32(range(N)), out),
    )


def test_slots_out_must_have_room_for_every_token(tree: AnyTree) -> None:
    fails_unchanged(
        tree,
        "^slots_out: expected room for 8 slots, one for each token, got 7",
        lambda: tree.match_prefix(u32(range(N)), i32([0] * 7)),
    )


def test_every_token_needs_a_slot(tree: AnyTree) -> None:
    fails_unchanged(
        tree,
        "^slots: expected at least 12, one for each token, got 11",
        lambda: tree.insert(u32(range(12)), i32(range(11))),
    )


def test_owned_from_beyond_what_is_held_is_refused(tree: AnyTree) -> None:
    fails_unchanged(
        tree,
        "^owned_from 10: the tree holds only 8 tokens of this key",
        lambda: tree.insert(u32(range(12)), i32(range(12)), owned_from=10),
    )


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "1", None])
def test_what_is_no_handle_is_refused(tree: AnyTree, value: object) -> None:
    message = r"^expected an int in 0\.\.2\^64, got "
    fails_unchanged(tree, message, lambda: tree.lock(value))  # type: ignore[arg-type]
    fails_unchanged(tree, message, lambda: tree.unlock(value))  # type: ignore[arg-type]
    fails_unchanged(tree, message, lambda: tree.evict(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1, 2**33, 2**33 + 1, 2**63, 2**64 - 1])
def test_a_guessed_handle_or_receipt_is_unknown(tree: AnyTree, value: int) -> None:
    fails_unchanged(tree, f"^unknown node {value}: ", lambda: tree.lock(value))
    fails_unchanged(tree, f"^unknown receipt {value}: ", lambda: tree.unlock(value))


def test_a_receipt_is_good_once(tree: AnyTree) -> None:
    node = tree.match_prefix(u32(range(N)), i32([0] * N)).node
    receipt = tree.lock(node)
    tree.unlock(receipt)
    fails_unchanged(tree, f"^unknown receipt {receipt}: ", lambda: tree.unlock(receipt))


def test_a_receipt_is_not_a_node_nor_a_node_a_receipt(tree: AnyTree) -> None:
    node = tree.match_prefix(u32(range(N)), i32([0] * N)).node
    receipts = [tree.lock(node) for _ in range(5)]
    fails_unchanged(tree, f"^unknown receipt {node}: ", lambda: tree.unlock(node))
    for receipt in receipts:
        fails_unchanged(tree, f"^unknown node {receipt}: ", lambda node=receipt: tree.lock(node))


@pytest.mark.parametrize("sizes", [(0, 4), (1, 0), (3, 4), (8, 4), (2**32, 2**32), (2**63, 2**63)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int], make: Make) -> None:
    with pytest.raises(TreeError, match=f"^page_size {sizes[0]}, block_size {sizes[1]}: "):
        make(*sizes)


@pytest.mark.parametrize("key", [b"", b"key", KEY + b"0"])
def test_the_hash_key_has_16_bytes(key: bytes) -> None:
    for call in (
        lambda: Tree(hash_key=key, model="m"),
        lambda: PyTree(hash_key=key, model="m"),
        lambda: Router(hash_key=key),
        lambda: radix_rs.key_check(key),
        lambda: chain.key_check(key),
        lambda: chain_hashes(u32([1]), hash_key=key, model="m", block_size=1),
    ):
        with pytest.raises(ValueError, match=f"^hash_key: expected 16 bytes, got {len(key)}$"):
            call()


def test_a_chain_is_of_blocks_that_have_tokens() -> None:
    with pytest.raises(TreeError, match=r"^block_size: expected at least 1, got 0"):
        chain_hashes(u32([1]), hash_key=KEY, model="m", block_size=0)


def test_a_snapshot_chunk_holds_at_least_one_block(tree: AnyTree) -> None:
    fails_unchanged(tree, "^max_blocks: expected at least 1, got 0", lambda: tree.snapshot(0))


def test_array_numpy_and_memoryview_are_all_buffers(tree: AnyTree) -> None:
    key = array("I", range(N))
    for tokens in (key, memoryview(key), memoryview(key).cast("B").cast("I"), np.asarray(key)):
        for out in (array("i", [0] * N), memoryview(array("i", [0] * N)), i32([0] * N)):
            assert tree.match_prefix(tokens, out).length == N
            assert list(out) == list(range(N))


def test_tokens_and_slots_out_may_share_memory(tree: AnyTree) -> None:
    tree.insert(u32(range(N)), i32(range(N)))
    memory = u32(range(N))
    assert tree.match_prefix(memory, memory.view(np.int32)).length == N
    assert list(memory) == list(range(N))


def test_empty_buffers_match_and_store_nothing(make: Make) -> None:
    tree = make()
    for empty in (array("I"), u32([]), memoryview(array("I"))):
        assert tree.match_prefix(empty, array("i")).length == 0
        assert tree.peek(empty) == 0
        assert tree.insert(empty, array("i")).prefix_length == 0
    assert tree.evict(0) == tree.evict(10) == tree.reset() == b""


def test_the_largest_token_ids_and_slots_are_ordinary(make: Make) -> None:
    tree = make()
    key, slots = u32([2**32 - 1, 0, 2**32 - 1, 2**32 - 2]), i32([2**31 - 1, 0, 1, 2])
    tree.insert(key, slots)
    out = i32([0] * 4)
    assert tree.match_prefix(key, out).length == 4
    assert (out == slots).all()
    assert tree.count_digest()[0] == 1
    tree.check()


def test_a_page_may_be_larger_than_any_key(make: Make) -> None:
    tree = make(page_size=2**31, block_size=2**31)
    assert tree.insert(u32(range(100)), i32(range(100))).prefix_length == 0
    assert tree.match_prefix(u32(range(100)), i32([0] * 100)).length == 0
    assert tree.stats().tokens == 0


def test_a_key_has_fewer_than_2_32_tokens(tree: AnyTree) -> None:
    """Nobody reads the 16 GiB, so that they need not be there."""
    no_reserve = 0x4000  # MAP_NORESERVE: mmap names it from Python 3.13 on
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = memoryview(mmap.mmap(-1, 4 << 32, flags=private | no_reserve))
    key, slots = memory.cast("I"), memory.cast("i")
    message = rf"^a key of {2**32} tokens: at most {2**32 - 1} are possible"
    fails_unchanged(tree, message, lambda: tree.peek(key))
    fails_unchanged(tree, message, lambda: tree.touch(key))
    fails_unchanged(tree, message, lambda: tree.match_prefix(key))
    fails_unchanged(tree, message, lambda: tree.insert(key, slots))
    fails_unchanged(tree, message, lambda: tree.admit(key, slots))


@pytest.mark.parametrize("namespace", [{"extra_key": "\ud800"}, {"cache_salt": "a\udfff"}])
def test_a_namespace_that_is_no_unicode_changes_nothing(
    tree: AnyTree, namespace: dict[str, str]
) -> None:
    key, slots = u32(range(100, 100 + N)), i32(range(100, 100 + N))
    receipt = tree.admit(key, slots).receipt
    before = tree.dump()
    for call in (
        lambda: tree.peek(key, **namespace),
        lambda: tree.find(key, **namespace),
        lambda: tree.match_prefix(key, **namespace),
        lambda: tree.insert(key, slots, **namespace),
        lambda: tree.admit(key, slots, **namespace),
        lambda: tree.checkpoint(key, slots, receipt=receipt, **namespace),
        lambda: tree.finish(key, slots, receipt=receipt, **namespace),
    ):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            call()
    assert tree.dump() == before
    tree.check()
    tree.unlock(receipt)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_key_of_a_million_tokens(page_size: int, make: Make, part: int) -> None:
    tree = make(page_size)
    count, place = 1_000_000 // part, 777_777 // part
    key, slots = np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.int32)
    tree.insert(key, slots)
    out = np.empty(count, dtype=np.int32)
    other = key.copy()
    other[place] += 1
    parting = place - place % page_size
    assert tree.match_prefix(other, out).length == parting
    assert (out[:parting] == slots[:parting]).all()
    assert tree.match_prefix(key, out).length == count
    assert (out == slots).all()
    assert tree.count_digest()[0] == count // 4
    assert (np.array(numbers(tree.evict(1))) == slots[parting:]).all()
    tree.check()
    assert numbers(tree.evict(2**63)) == list(slots[:parting])
    assert tree.count_digest() == (0, 0)


def test_a_path_longer_than_the_interpreter_recurses(make: Make) -> None:
    tree = make()
    count = 3 * sys.getrecursionlimit() // 2
    key, slots = np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.int32)
    tree.insert(key, slots)
    for length in range(count - 1, 0, -1):
        tree.touch(key[:length])
    assert tree.stats().nodes == count
    tree.check()
    assert len(tree.dump().splitlines()) == 1 + count
    assert sum(map(len, tree.snapshot(100))) > count
    receipt = tree.lock(tree.match_prefix(key).node)
    assert tree.stats().protected == count
    tree.unlock(receipt)
    assert len(numbers(tree.evict(count // 2))) == count // 2
    tree.check()
    del tree
    gc.collect()


def test_100_000_children_of_one_node(make: Make, part: int) -> None:
    tree = make()
    count = 100_000 // part
    prefix = [7, 7]
    for child in range(count):
        slot = 3 * child
        tree.insert(u32([*prefix, child]), i32([slot, slot + 1, slot + 2]))
    assert tree.stats().nodes == count + 1
    out = i32([0, 0, 0])
    for child in (0, 1, count // 3, count - 1):
        assert tree.match_prefix(u32([*prefix, child]), out).length == 3
        assert out[2] == 3 * child + 2
    assert tree.match_prefix(u32([*prefix, count]), out).length == 2
    tree.check()
    assert len(numbers(tree.evict(count // 2))) == count // 2
    assert tree.stats().nodes == count // 2 + 1
    tree.check()


def test_many_namespaces_leave_nothing_behind(make: Make) -> None:
    tree = make()
    for tenant in range(1000):
        tree.insert(u32(range(N)), i32(range(tenant * N, tenant * N + N)), cache_salt=f"{tenant}")
    assert tree.stats().nodes == 1000
    assert tree.match_prefix(u32(range(N)), i32([0] * N)).length == 0
    tree.evict(500 * N)
    tree.check()
    tree.evict(500 * N)
    assert tree.dump() == "root\n"


def test_slots_need_not_be_asked_for(tree: AnyTree) -> None:
    match = tree.match_prefix(u32(range(N + 3)))
    assert match.length == tree.touch(u32(range(N + 3))) == N
    assert tree.match_prefix(u32(range(N))).node == match.node


def test_a_priority_is_a_number_of_64_bits(tree: AnyTree) -> None:
    key, slots = u32(range(N)), i32(range(N))
    for priority in (-(2**63), 2**63 - 1):
        tree.insert(key, slots, priority=priority)
        receipt = tree.admit(key, slots).receipt
        tree.finish(key, slots, receipt=receipt, owned_from=N, prompt_length=3, priority=priority)
    for priority in (2**63, 1.5, "1", None):
        fails_unchanged(
            tree,
            r"^priority: expected an int in -2\^63\.\.2\^63, got ",
            lambda priority=priority: tree.insert(key, slots, priority=priority),
        )


def test_a_request_with_a_wrong_receipt_changes_nothing(tree: AnyTree) -> None:
    key, slots = u32(range(N + 4)), i32(range(N + 4))
    receipt = tree.admit(key, slots.copy()).receipt
    tree.unlock(receipt)
    for call in (
        lambda: tree.admit(key, slots, receipt=receipt),
        lambda: tree.checkpoint(key, slots, receipt=receipt),
        lambda: tree.finish(key, slots, receipt=receipt),
    ):
        fails_unchanged(tree, f"^unknown receipt {receipt}: ", call)


def test_a_request_cannot_own_more_than_its_whole_pages(make: Make) -> None:
    tree = make(page_size=4)
    key, slots = u32(range(N)), i32(range(N))
    receipt = tree.checkpoint(key, slots, receipt=tree.admit(key, slots).receipt).receipt
    for call in (tree.checkpoint, tree.finish):
        with pytest.raises(TreeError, match=r"^owned_from 5: the tree holds only 4 tokens of this"):
            call(key[:7], slots, receipt=receipt, owned_from=5)
    tree.unlock(receipt)


def test_what_a_request_computed_twice_is_given_back_and_replaced(make: Make) -> None:
    tree = make()
    key = u32(range(N))
    first, second = i32(range(N)), i32(range(100, 100 + N))
    receipts = [tree.admit(key, out.copy()).receipt for out in (first, second)]
    done = tree.checkpoint(key, first, receipt=receipts[0], prompt_length=3)
    assert (done.length, done.prefix_length, done.freed) == (N, 0, b"")
    again = tree.checkpoint(key, second, receipt=receipts[1])
    assert (again.length, again.prefix_length, again.node) == (N, N, done.node)
    assert numbers(again.freed) == list(range(100, 100 + N))
    assert list(second) == list(first)
    tree.unlock(done.receipt)
    assert tree.finish(key, second, receipt=again.receipt, owned_from=N) == b""
    assert numbers(tree.evict(1)) == [3, 4, 5, 6, 7], "the output alone"


def test_a_disabled_tree_holds_nothing_and_leaves_all_slots_to_the_caller(make: Make) -> None:
    tree = make(disabled=True)
    key, slots = u32(range(N)), i32(range(N))
    inserted = tree.insert(key, slots)
    assert (inserted.prefix_length, inserted.duplicates) == (0, [])
    match = tree.match_prefix(key, slots)
    assert (match.length, match.node) == (tree.peek(key), inserted.node) == (0, inserted.node)
    tree.unlock(tree.lock(match.node))
    admitted = tree.admit(key, slots)
    done = tree.checkpoint(key, slots, receipt=admitted.receipt, prompt_length=3)
    assert (admitted.length, done.length, done.freed) == (0, 0, b"")
    assert numbers(tree.finish(key, slots, receipt=done.receipt)) == list(slots)
    assert tree.evict(10) == tree.reset() == b""
    tree.drain_deltas()
    tree.insert(key, slots)
    assert tree.drain_deltas() is None
    assert tree.stats().nodes == tree.stats().locks == 0
    tree.check()


@pytest.mark.parametrize("value", [-1, "1", None])
def test_a_policy_option_that_is_no_number_is_refused(make: Make, value: object) -> None:
    with pytest.raises(TreeError, match=r"^policy option threshold: expected .*, got "):
        make(policy="slru", policy_options={"threshold": value})


def test_an_unknown_policy_or_option_is_answered_with_the_known_ones(make: Make) -> None:
    with pytest.raises(TreeError, match=r'^policy "lifo": expected one of lru, lfu, slru, prio'):
        make(policy="lifo")
    known = "known: threshold, next_prompt_estimate$"
    with pytest.raises(TreeError, match=f'^policy tlru: unknown option "growth", {known}'):
        make(policy="tlru", policy_options={"growth": 1})
