//! What a tree costs, by the allocator's own count.

#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use radix_rs::chain::HashKey;
use radix_rs::tree::{Claim, Namespace, Tree};

struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: usize = 20_000;
const TOKENS_OF_NODE: usize = 100;

/// A token is its id and slot, four bytes each; its share of a block's hash comes on top.
#[test]
fn a_tree_costs_eight_bytes_a_token_eight_a_block_and_at_most_200_a_node() {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let mut tree = Tree::new(1, 16, HashKey::derive(b"a secret"), "m").unwrap();
    let slots: Vec<i32> = (0..).take(TOKENS_OF_NODE).collect();
    for node in 0..u32::try_from(NODES).unwrap() {
        let tokens: Vec<u32> = (node..).take(TOKENS_OF_NODE).collect();
        tree.insert(&tokens, &slots, Claim::default(), Namespace::default())
            .unwrap();
        tree.drain_deltas();
    }
    let bytes = LIVE_BYTES.load(Ordering::Relaxed) - before;
    let stats = tree.stats();
    assert_eq!(stats.nodes, NODES);
    let (blocks, _) = tree.count_digest();
    let payload = 8 * stats.tokens + 8 * usize::try_from(blocks).unwrap();
    let of_node = (bytes - payload) / stats.nodes;
    assert!(of_node <= 200, "{of_node} bytes a node");
    drop(tree);
    let left = LIVE_BYTES.load(Ordering::Relaxed) - before;
    assert!(left < 10_000, "{left} bytes stay behind");
}
