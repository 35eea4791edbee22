//! Calls on the tree without Python: `cargo bench --bench tree`.

#![allow(missing_docs, reason = "criterion's macro writes a function without")]

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use radix_rs::chain::HashKey;
use radix_rs::tree::{Claim, EvictPolicy, Namespace, Tree};
use std::hint::black_box;

const EDGE: usize = 16_384;

fn tree(policy: EvictPolicy) -> Tree {
    Tree::new(1, 16, HashKey::derive(b"bench"), "m", policy).expect("possible sizes")
}

/// Keys with different first tokens, that look like no other key's.
fn key(number: usize, length: usize) -> Vec<u32> {
    let seed = u32::try_from(number).expect("few keys").wrapping_mul(7919);
    (0..u32::try_from(length).expect("short keys"))
        .map(|i| seed.wrapping_add(i.wrapping_mul(0x9e37_79b9)))
        .collect()
}

fn insert(tree: &mut Tree, tokens: &[u32]) {
    let slots = vec![0; tokens.len()];
    tree.insert(tokens, &slots, Claim::default(), Namespace::default())
        .expect("a slot for each token");
}

fn with_keys(policy: EvictPolicy, count: usize, length: usize) -> Tree {
    let mut tree = tree(policy);
    for number in 0..count {
        insert(&mut tree, &key(number, length));
    }
    tree.drain_deltas();
    tree
}

fn matches(c: &mut Criterion) {
    let mut group = c.benchmark_group("match one key");
    for length in [1, 1024, 16_384, 65_536] {
        let (mut tree, key) = (with_keys(EvictPolicy::Lru, 1, length), key(0, length));
        group.bench_function(BenchmarkId::from_parameter(length), |b| {
            b.iter(|| tree.match_prefix(black_box(&key), Namespace::default()));
        });
    }
}

fn inserts(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert a new key and evict it");
    for length in [64, 1024, 12_288] {
        let (mut tree, key) = (tree(EvictPolicy::Lru), key(0, length));
        group.bench_function(BenchmarkId::from_parameter(length), |b| {
            b.iter(|| {
                insert(&mut tree, black_box(&key));
                tree.evict(1);
                tree.drain_deltas()
            });
        });
    }
}

fn splits(c: &mut Criterion) {
    let head = &key(0, EDGE)[..16];
    c.bench_function("split an edge of 16k", |b| {
        b.iter_batched_ref(
            || with_keys(EvictPolicy::Lru, 1, EDGE),
            |tree| tree.match_prefix(head, Namespace::default()),
            BatchSize::LargeInput,
        );
    });
}

/// One leaf goes and one comes, so that there are always as many.
fn evictions(c: &mut Criterion) {
    let mut group = c.benchmark_group("evict one leaf and insert another");
    for (name, policy) in [("lru", EvictPolicy::Lru), ("lfu", EvictPolicy::Lfu)] {
        for leaves in [100, 10_000, 100_000] {
            let mut tree = with_keys(policy, leaves, 16);
            let mut next = leaves;
            group.bench_function(BenchmarkId::new(name, leaves), |b| {
                b.iter(|| {
                    tree.evict(1);
                    insert(&mut tree, &key(next, 16));
                    next += 1;
                    tree.drain_deltas()
                });
            });
        }
    }
}

criterion_group!(benches, matches, inserts, splits, evictions);
criterion_main!(benches);
