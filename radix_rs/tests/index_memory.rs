//! What a bounded index costs, by the allocator's own count.

mod counting;

use radix_rs::chain::NO_PARENT;
use radix_rs::index::Index;

use counting::live_bytes;

const MAX_BYTES: usize = 256 << 20;
const PROMPTS: u64 = 1_000_000;
/// Of 2,000 tokens in blocks of 16.
const BLOCKS: u64 = 125;

/// Spreads small numbers over 64 bits: the finaliser of `MurmurHash3`.
fn mix(number: u64) -> u64 {
    let mut x = number;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// One prompt is asked for again and again, as a system prompt is: it stays, and memory does.
#[test]
fn a_million_distinct_prompts_take_the_bound_and_no_more() {
    let before = live_bytes();
    let mut index = Index::default();
    index.set_max_bytes(MAX_BYTES);
    let replica = index.add_replica();
    let hot: Vec<u64> = (1..=BLOCKS).map(mix).collect();
    let (mut largest, mut hashes) = (0, Vec::new());
    for prompt in 1..=PROMPTS {
        index.store(replica, NO_PARENT, &hot);
        hashes.clear();
        hashes.extend((0..BLOCKS).map(|at| mix(prompt << 20 | at)));
        index.store(replica, NO_PARENT, &hashes);
        largest = largest.max(live_bytes() - before);
    }
    assert!(largest <= MAX_BYTES / 100 * 105, "{largest} bytes");
    assert!(largest >= MAX_BYTES / 100 * 90, "{largest} bytes");
    let known = BLOCKS * (PROMPTS + 1);
    assert_eq!(index.tally(replica).count, known);
    let kept = index.num_blocks() as u64;
    assert_eq!(index.forgotten(replica).count, known - kept);
    assert_eq!(
        index.store(replica, NO_PARENT, &hot),
        0,
        "the hot one was kept"
    );
    drop(index);
    let left = live_bytes() - before;
    assert!(
        left < 10_000 + hot.len() * 8 + hashes.capacity() * 8,
        "{left} bytes stay behind"
    );
}
