//! What a tree costs, by the allocator's own count.

#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
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
const BLOCK: usize = 16;

/// A token is its id and slot, four bytes each. Each whole block adds its hash: half a byte a token here.
#[test]
fn a_tree_costs_eight_bytes_a_token_eight_a_block_and_at_most_200_a_node() {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let live_bytes = || LIVE_BYTES.load(Ordering::Relaxed) - before;
    let mut tree = Tree::new(1, BLOCK, HashKey::derive(b"a secret"), "m").unwrap();
    let slots: Vec<i32> = (0..).take(TOKENS_OF_NODE).collect();
    let key = |node: usize| {
        let first = u32::try_from(node).unwrap();
        (first..first + 100).collect::<Vec<u32>>()
    };
    for node in 0..NODES {
        tree.insert(&key(node), &slots, Claim::default(), Namespace::default())
            .unwrap();
        tree.drain_deltas();
    }
    assert_eq!(tree.stats().nodes, NODES);
    report("new", &tree, live_bytes(), 0, NODES);

    // A split copies nothing, so each half is a node and no more.
    for node in 0..NODES {
        tree.match_prefix(&key(node)[..80], Namespace::default())
            .unwrap();
    }
    assert_eq!(tree.stats().nodes, 2 * NODES);
    report("split", &tree, live_bytes(), 0, 2 * NODES);

    // Of what was stored together, up to a quarter may be kept when it is evicted; places of nodes are kept
    // for the next ones.
    tree.evict(20 * NODES);
    tree.drain_deltas();
    assert_eq!(tree.stats().tokens, 80 * NODES);
    report(
        "evicted",
        &tree,
        live_bytes(),
        8 * 20 * NODES + 8 * NODES,
        2 * NODES,
    );

    drop(tree);
    drop(slots);
    assert!(live_bytes() < 10_000, "{} bytes stay behind", live_bytes());
}

/// `kept` are bytes of evicted tokens and their blocks, `most` the most nodes there were.
fn report(state: &str, tree: &Tree, bytes: usize, kept: usize, most: usize) {
    let sizes = tree.stats();
    let (blocks, _) = tree.count_digest();
    let payload = 8 * sizes.tokens + 8 * usize::try_from(blocks).unwrap() + kept;
    let of_node = (bytes - payload) / most;
    let line = format!(
        "{state} tree: {bytes} bytes, {} tokens, {blocks} blocks, {kept} kept, {of_node} a node\n",
        sizes.tokens
    );
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    assert!(of_node <= 200, "{of_node} bytes a node");
}
