//! What a tree costs, by the allocator's own count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;

use radix_rs::chain::HashKey;
use radix_rs::tree::{Claim, EvictPolicy, Namespace, Tree};

use counting::live_bytes;

const NODES: usize = 2000;
const BLOCK: usize = 16;

/// Of `NODES` nodes of as many tokens as there are slots.
fn bytes_of_a_node(slots: &[i32]) -> usize {
    let before = live_bytes();
    let mut tree = Tree::new(
        1,
        BLOCK,
        HashKey::derive(b"a secret"),
        "m",
        EvictPolicy::Lru,
    )
    .unwrap();
    for node in 0..u32::try_from(NODES).unwrap() {
        let tokens: Vec<u32> = (node..).take(slots.len()).collect();
        tree.insert(&tokens, slots, Claim::default(), Namespace::default())
            .unwrap();
        tree.drain_deltas();
    }
    let bytes = live_bytes() - before;
    assert_eq!(tree.stats().nodes, NODES);
    drop(tree);
    let left = live_bytes() - before;
    assert!(left < 10_000, "{left} bytes stay behind");
    bytes / NODES
}

/// A token is its id and its slot, four bytes each. Slots in rows take less, which makes up for the hashes
/// of blocks; where nothing orders them those come on top. One test, since one allocator counts.
#[test]
fn a_tree_costs_eight_bytes_a_token_and_at_most_200_a_node() {
    for length in [BLOCK, 100, 1000] {
        let in_order: Vec<i32> = (0..).take(length).collect();
        let in_pages: Vec<i32> = in_order
            .chunks(BLOCK)
            .rev()
            .flat_map(<[i32]>::iter)
            .copied()
            .collect();
        let scattered: Vec<i32> = (0..).step_by(2).take(length).collect();
        let hashes = 8 * (length / BLOCK);
        for (name, slots, of_tokens) in [
            ("in order", in_order, 4 * length + hashes + 8),
            ("in pages", in_pages, 4 * length + 2 * hashes + 8),
            ("scattered", scattered, 8 * length + hashes),
        ] {
            let bytes = bytes_of_a_node(&slots);
            let of_node = bytes - of_tokens;
            assert!(of_node <= 200, "{of_node} bytes a node {name}");
            assert!(
                name == "scattered" || bytes <= 8 * length + 200,
                "{bytes} bytes for {length} tokens {name}"
            );
        }
    }
}
