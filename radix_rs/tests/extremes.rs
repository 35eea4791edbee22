//! Shapes at the limits: a right answer or a typed error, in reasonable time, and no recursion anywhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use radix_rs::chain::HashKey;
use radix_rs::error::TreeError;
use radix_rs::tree::{Claim, EvictPolicy, Namespace, Tree};

fn tree(page_size: usize, block_size: usize) -> Tree {
    new_tree(page_size, block_size, EvictPolicy::Lru).unwrap()
}

fn new_tree(page_size: usize, block_size: usize, policy: EvictPolicy) -> Result<Tree, TreeError> {
    let key = HashKey::derive(b"a secret");
    Tree::new(page_size, block_size, key, "m", policy)
}

fn plain() -> Namespace<'static> {
    Namespace::default()
}

/// `length` levels of a page each, by splitting one edge from its end up.
fn deep(page_size: u32, length: u32) -> (Tree, Vec<u32>) {
    let mut tree = tree(page_size as usize, 4 * page_size as usize);
    let key: Vec<u32> = (0..length * page_size).collect();
    let slots: Vec<i32> = (0..).take(key.len()).collect();
    tree.insert(&key, &slots, Claim::default(), plain())
        .unwrap();
    for end in (page_size as usize..key.len())
        .step_by(page_size as usize)
        .rev()
    {
        tree.match_prefix(&key[..end], plain()).unwrap();
    }
    assert_eq!(tree.stats().nodes, length as usize);
    (tree, key)
}

#[test]
fn a_path_of_100_000_nodes_is_matched_locked_told_and_evicted() {
    let (mut tree, key) = deep(1, 100_000);
    let found = tree.match_prefix(&key, plain()).unwrap();
    assert_eq!(found.length, key.len());
    let receipt = tree.lock(found.node).unwrap();
    assert_eq!(tree.stats().protected, key.len());
    assert!(tree.evict(1).is_empty());
    assert_eq!(
        tree.path_slots(found.node, 0).unwrap().count(),
        key.len(),
        "a piece for each node"
    );
    let blocks: usize = tree.snapshot(1000).unwrap().map(|chunk| chunk.len()).sum();
    assert_eq!(blocks, 25);
    tree.unlock(receipt).unwrap();
    tree.check().unwrap();
    assert_eq!(tree.evict(50_000).to_vec().len(), 50_000);
    tree.check().unwrap();
    assert_eq!(tree.peek(&key, plain()), Ok(50_000));
    assert_eq!(tree.reset().unwrap().to_vec().len(), 50_000);
}

#[test]
fn a_deep_tree_is_dropped_without_recursion() {
    let (tree, _) = deep(2, 20_000);
    let small_stack = std::thread::Builder::new().stack_size(64 << 10);
    small_stack
        .spawn(move || drop(tree))
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_node_has_100_000_children_each_found_and_evicted_in_order() {
    let mut tree = tree(2, 2);
    for child in 0..100_000 {
        let slot = 4 * i32::try_from(child).unwrap();
        tree.insert(
            &[7, 7, u32::MAX - child, u32::MAX],
            &[slot, slot + 1, slot + 2, slot + 3],
            Claim::default(),
            plain(),
        )
        .unwrap();
    }
    assert_eq!(tree.stats().nodes, 100_001);
    for child in [0, 1, 77_777, 99_999] {
        let key = [7, 7, u32::MAX - child, u32::MAX, 1];
        assert_eq!(tree.peek(&key, plain()), Ok(4));
    }
    assert_eq!(tree.peek(&[7, 7, 5, u32::MAX], plain()), Ok(2));
    tree.check().unwrap();
    assert_eq!(tree.evict(3).to_vec(), [2, 3, 6, 7]);
    assert_eq!(tree.evict(usize::MAX).to_vec().len(), 200_000 - 4 + 2);
    assert_eq!(tree.count_digest(), (0, 0));
}

#[test]
fn a_key_of_a_million_tokens_parts_where_it_differs() {
    let mut tree = tree(16, 64);
    let key: Vec<u32> = (0..1_000_000).map(|place| u32::MAX - place / 2).collect();
    let slots: Vec<i32> = (0..).take(key.len()).collect();
    tree.insert(&key, &slots, Claim::default(), plain())
        .unwrap();
    let mut other = key.clone();
    other[777_777] ^= 1;
    assert_eq!(tree.match_prefix(&other, plain()).unwrap().length, 777_776);
    assert_eq!(tree.evict(1).to_vec(), slots[777_776..]);
    assert_eq!(tree.count_digest().0, 777_776 / 64);
    tree.check().unwrap();
}

#[test]
fn pages_and_blocks_may_be_as_large_as_a_position() {
    let most = u32::MAX as usize;
    for (page_size, block_size) in [(most, most), (1, most), (3, most)] {
        let mut tree = tree(page_size, block_size);
        let done = tree.insert(
            &[1; 9],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            Claim::default(),
            plain(),
        );
        assert_eq!(done.unwrap().prefix_length, 0);
        assert_eq!(tree.stats().tokens, if page_size == most { 0 } else { 9 });
        assert_eq!(tree.count_digest(), (0, 0));
        tree.check().unwrap();
    }
    for (page_size, block_size) in [(0, 4), (4, 0), (3, 4), (8, 4), (most + 1, most + 1)] {
        let refused = new_tree(page_size, block_size, EvictPolicy::Lru);
        let sizes = TreeError::Sizes {
            page_size,
            block_size,
        };
        assert_eq!(refused.err(), Some(sizes));
    }
}

#[test]
fn the_largest_options_of_a_policy_neither_wrap_nor_round() {
    let policy = EvictPolicy::Tlru {
        threshold: u64::MAX - 5,
        next_prompt_estimate: u64::MAX,
    };
    let mut tree = new_tree(1, 4, policy).unwrap();
    for first in [0, 100] {
        let key: Vec<u32> = (first..first + 10).collect();
        let slots: Vec<i32> = (i32::try_from(first).unwrap()..).take(10).collect();
        tree.insert(&key, &slots, Claim::default(), plain())
            .unwrap();
    }
    // The next prompt is longer than the longest key by 5: nothing is a tail, and the older goes first.
    tree.match_prefix(&(100..105).collect::<Vec<u32>>(), plain())
        .unwrap();
    assert_eq!(tree.evict(1).to_vec(), (0..10).collect::<Vec<i32>>());
}

#[test]
fn greatest_priorities_counts_and_claims_saturate() {
    let mut tree = new_tree(1, 4, EvictPolicy::Priority).unwrap();
    let key = [1, 2, 3, 4];
    let claim = Claim {
        counted_to: usize::MAX,
        priority: i64::MAX,
        ..Claim::default()
    };
    let receipt = tree.admit(&key, None, plain()).unwrap().receipt;
    let done = tree
        .checkpoint(&key, &[0, 1, 2, 3], 2, receipt, claim, plain())
        .unwrap();
    let freed = tree.finish(
        &key,
        &[0, 1, 2, 3, 9],
        usize::MAX,
        done.receipt,
        Claim {
            owned_from: 4,
            priority: i64::MIN,
            ..claim
        },
        plain(),
    );
    assert_eq!(freed.unwrap().to_vec(), [9]);
    tree.check().unwrap();
    assert_eq!(tree.evict(usize::MAX).to_vec(), [2, 3, 0, 1]);
}
