//! A bounded index against whole sets: what it forgets stays accounted for, and is forgotten in the right order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::step_tests::{Change, in_steps};
use super::tests::{Forest, chain, forest};
use super::{Index, Matches, ReplicaId, ReplicaSet, Tally};
use crate::chain::NO_PARENT;
use crate::delta::Removed;

const REPLICAS: usize = 3;

/// Choices are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Store {
        replica: usize,
        block: usize,
    },
    Remove {
        replica: usize,
        block: usize,
        count: usize,
    },
    Clear {
        replica: usize,
    },
    Match {
        block: usize,
    },
    Bound {
        max_bytes: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (replica, block) = (0..REPLICAS, any::<usize>());
    prop_oneof![
        8 => (replica.clone(), block).prop_map(|(replica, block)| Op::Store { replica, block }),
        6 => (replica.clone(), any::<usize>(), 1..9usize)
            .prop_map(|(replica, block, count)| Op::Remove { replica, block, count }),
        1 => replica.prop_map(|replica| Op::Clear { replica }),
        2 => any::<usize>().prop_map(|block| Op::Match { block }),
        1 => (1_000..12_000usize).prop_map(|max_bytes| Op::Bound { max_bytes }),
    ]
}

/// Replicas that publish by the rules, and the index that follows them.
struct Fleet {
    forest: Forest,
    index: Index,
    ids: Vec<ReplicaId>,
    held: Vec<BTreeSet<usize>>,
    /// Whether the index hears of changes.
    is_told: bool,
}

impl Fleet {
    fn new(forest: Forest) -> Self {
        let mut index = Index::default();
        index.set_max_bytes(6_000);
        let ids = (0..REPLICAS).map(|_| index.add_replica()).collect();
        Self {
            forest,
            index,
            ids,
            held: vec![BTreeSet::new(); REPLICAS],
            is_told: true,
        }
    }

    /// In steps, after each of which the locator is away for a while.
    fn tell(&mut self, replica: usize, change: &Change) -> u64 {
        in_steps(&mut self.index, self.ids[replica], change, Index::tidy)
    }

    fn store(&mut self, replica: usize, block: usize) {
        let path = self.forest.path(block);
        let held = &mut self.held[replica];
        let from = path.iter().take_while(|b| held.contains(b)).count();
        held.extend(&path);
        let hashes: Vec<u64> = path[from..].iter().map(|&b| Forest::hash(b)).collect();
        let parent = from
            .checked_sub(1)
            .map_or(NO_PARENT, |b| Forest::hash(path[b]));
        if self.is_told {
            let count = hashes.len() as u64;
            assert_eq!(self.tell(replica, &Change::Store { parent, hashes }), count);
        }
    }

    /// Removes `block` and blocks before it that nothing else follows, if nothing follows it.
    fn remove(&mut self, replica: usize, block: usize, count: usize) {
        let path = self.forest.path(block);
        let mut gone = Vec::new();
        for &block in path.iter().rev().take(count) {
            let held = &mut self.held[replica];
            let is_followed = held.iter().any(|&b| self.forest.parents[b] == Some(block));
            if is_followed || !held.remove(&block) {
                break;
            }
            gone.insert(0, Forest::hash(block));
        }
        if let Some(range) = Removed::of(&gone)
            && self.is_told
        {
            assert_eq!(
                self.tell(replica, &Change::Remove(range)),
                gone.len() as u64
            );
        }
    }

    fn run(&mut self, op: &Op) {
        let blocks = self.forest.parents.len();
        match *op {
            Op::Store { replica, block } => self.store(replica, block % blocks),
            Op::Remove {
                replica,
                block,
                count,
            } => {
                let held: Vec<_> = self.held[replica].iter().copied().collect();
                if !held.is_empty() {
                    self.remove(replica, held[block % held.len()], count);
                }
            }
            Op::Clear { replica } => {
                let held = std::mem::take(&mut self.held[replica]).len() as u64;
                if self.is_told {
                    assert_eq!(self.tell(replica, &Change::Clear), held);
                }
            }
            Op::Match { block } => _ = matches(&self.index, &self.forest.chain(block % blocks)),
            Op::Bound { max_bytes } => self.index.set_max_bytes(max_bytes),
        }
    }

    fn check(&self) {
        self.index.check().unwrap();
        let (size, max) = (self.index.size_bytes(), self.index.max_bytes());
        assert!(
            size <= max || self.index.num_blocks() == 0,
            "{size} of {max}"
        );
        for (held, &id) in self.held.iter().zip(&self.ids) {
            let held: BTreeSet<_> = held.iter().map(|&block| Forest::hash(block)).collect();
            assert_eq!(self.index.tally(id), tally(held.iter().copied()));
            let known: BTreeSet<_> = self.index.blocks(id).into_iter().collect();
            assert!(known.is_subset(&held));
            let forgotten = held.difference(&known).copied();
            assert_eq!(self.index.forgotten(id), tally(forgotten));
            for block in 0..self.forest.parents.len() {
                let chain = self.forest.chain(block);
                let expected = chain.iter().take_while(|hash| known.contains(hash));
                let expected = expected.count();
                assert_eq!(matches(&self.index, &chain).of(id), expected);
                // What is known of a replica is whole prefixes: the rest could not be matched.
                assert_eq!(
                    known.contains(&Forest::hash(block)),
                    expected == chain.len()
                );
            }
        }
    }
}

fn tally(hashes: impl Iterator<Item = u64>) -> Tally {
    let hashes: Vec<u64> = hashes.collect();
    Tally::of(std::iter::once(&hashes[..]))
}

fn matches(index: &Index, chain: &[u64]) -> Matches {
    let mut all = ReplicaSet::default();
    (0..index.known.len()).for_each(|id| all.insert(id as ReplicaId));
    let mut matches = Matches::default();
    index.walk(chain, &all, &mut matches);
    matches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_forgotten_count_and_digest_remain_the_replicas(
        forest in forest(),
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut fleet = Fleet::new(forest);
        for op in ops {
            fleet.run(&op);
            fleet.check();
        }
        for replica in 0..REPLICAS {
            fleet.run(&Op::Clear { replica });
        }
        fleet.check();
        prop_assert_eq!((fleet.index.num_runs(), fleet.index.num_blocks()), (0, 0));
    }

    #[test]
    fn an_event_that_is_lost_shows_whatever_was_forgotten(
        forest in forest(),
        ops in prop::collection::vec(op(), 1..60),
        lost in any::<prop::sample::Index>(),
    ) {
        let mut fleet = Fleet::new(forest);
        let lost = lost.index(ops.len());
        ops[..lost].iter().for_each(|op| fleet.run(op));
        let before = fleet.held.clone();
        fleet.is_told = false;
        fleet.run(&ops[lost]);
        for (replica, &id) in fleet.ids.iter().enumerate() {
            let held = fleet.held[replica].iter().map(|&block| Forest::hash(block));
            let is_same = fleet.held[replica] == before[replica];
            prop_assert_eq!(fleet.index.tally(id) == tally(held), is_same);
        }
    }
}

fn bounded(max_bytes: usize) -> (Index, ReplicaId) {
    let mut index = Index::default();
    index.set_max_bytes(max_bytes);
    let replica = index.add_replica();
    (index, replica)
}

#[test]
fn what_is_matched_now_and_then_outlives_what_is_not() {
    let (mut index, replica) = bounded(200_000);
    let hot: Vec<_> = (1..=20).map(|seed| chain(seed, 30)).collect();
    for prompt in &hot {
        index.store(replica, NO_PARENT, prompt);
    }
    for seed in 100..4_000 {
        index.store(replica, NO_PARENT, &chain(seed, 30));
        let again = &hot[seed as usize % hot.len()];
        assert_eq!(matches(&index, again).of(replica), 30, "after {seed}");
        assert!(index.size_bytes() <= 200_000);
    }
    // Of those that nobody asked for again the latest are left, in the order in which they came.
    let left = (100..4_000).map(|seed| matches(&index, &chain(seed, 30)).of(replica));
    let left: Vec<_> = left.collect();
    let from = left.iter().position(|&matched| matched > 0).unwrap();
    assert!(from > 2_000 && left[from + 1..].iter().all(|&matched| matched == 30));
    assert_eq!(index.tally(replica).count, 30 * 3_920);
}

#[test]
fn a_conversation_is_forgotten_from_its_end() {
    let (mut index, replica) = bounded(usize::MAX);
    let (trunk, old, new) = (chain(1, 40), chain(2, 40), chain(3, 40));
    index.store(replica, NO_PARENT, &trunk);
    index.store(replica, trunk[39], &old);
    index.store(replica, trunk[39], &new);
    let (old, new) = ([&trunk[..], &old].concat(), [&trunk[..], &new].concat());
    let mut lengths = Vec::new();
    while index.num_blocks() > 0 {
        // Each time a piece less; nothing of this is a match.
        index.set_max_bytes(index.size_bytes() - 1);
        let length = |hashes: &[u64]| {
            hashes
                .iter()
                .take_while(|&&hash| index.holds(replica, hash))
                .count()
        };
        lengths.push((length(&old), length(&new)));
        assert_eq!(
            index.tally(replica),
            tally(trunk.iter().chain(&old[40..]).chain(&new[40..]).copied())
        );
    }
    assert!(
        lengths
            .windows(2)
            .all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 <= pair[0].1)
    );
    assert!(
        lengths.iter().all(|&(old, new)| new == 80 || old <= 40),
        "{lengths:?}"
    );
}

#[test]
fn a_removal_is_accounted_for_wherever_a_part_of_it_was_forgotten() {
    let prompt = chain(1, 60);
    for kept in (0..60).step_by(7) {
        for from in (0..60).step_by(11) {
            let (mut index, replica) = bounded(usize::MAX);
            let other = index.add_replica();
            index.store(replica, NO_PARENT, &prompt);
            // Cut where another one branches off, so that what is known of the range is several runs.
            index.store(other, NO_PARENT, &prompt[..20]);
            index.store(other, prompt[19], &chain(2, 3));
            while index.known[replica as usize].count > kept {
                index.set_max_bytes(index.size_bytes() - 1);
            }
            let range = Removed::of(&prompt[from..]).unwrap();
            assert_eq!(index.remove(replica, &range), 60 - from as u64);
            assert_eq!(index.tally(replica), tally(prompt[..from].iter().copied()));
            index.check().unwrap();
        }
    }
}

#[test]
fn a_removal_is_accounted_for_when_a_part_of_it_is_forgotten_between_its_steps() {
    let prompt = chain(1, 60);
    for steps in 1..20 {
        for excess in [1, 200, usize::MAX] {
            let (mut index, replica) = bounded(usize::MAX);
            index.store(replica, NO_PARENT, &prompt);
            let mut left = Removed::of(&prompt[10..]).unwrap();
            for _ in 0..steps {
                index.remove_step(replica, &mut left);
                index.tidy();
            }
            index.set_max_bytes(index.size_bytes().saturating_sub(excess));
            index.remove(replica, &left);
            assert_eq!(index.tally(replica), tally(prompt[..10].iter().copied()));
            index.check().unwrap();
        }
    }
}

#[test]
fn blocks_after_a_forgotten_one_are_as_good_as_forgotten() {
    let (mut index, replica) = bounded(0);
    let prompt = chain(1, 10);
    index.store(replica, NO_PARENT, &prompt[..5]);
    assert_eq!((index.num_blocks(), index.forgotten(replica).count), (0, 5));
    index.set_max_bytes(usize::MAX);
    index.store(replica, prompt[4], &prompt[5..]);
    assert_eq!(
        (index.num_blocks(), index.forgotten(replica).count),
        (0, 10)
    );
    assert_eq!(index.remove(replica, &Removed::of(&prompt).unwrap()), 10);
    assert_eq!(index.tally(replica), Tally::default());
    // The account is clear: it starts again as if nothing had been.
    index.store(replica, NO_PARENT, &prompt);
    assert_eq!(
        (index.num_blocks(), index.forgotten(replica).count),
        (10, 0)
    );
}

#[test]
fn a_removal_that_does_not_fit_what_was_forgotten_shows_in_count_or_digest() {
    let prompt = chain(1, 10);
    let good = Removed::of(&prompt[4..]).unwrap();
    let none = Tally::default();
    let broken = [
        Removed { first: 0, ..good },
        Removed {
            digest: good.digest ^ 1,
            ..good
        },
        Removed { count: 11, ..good },
    ];
    for removed in broken {
        let (mut index, replica) = bounded(0);
        index.store(replica, NO_PARENT, &prompt);
        index.remove(replica, &removed);
        assert_ne!(
            index.tally(replica),
            tally(prompt[..4].iter().copied()),
            "{removed:?}"
        );
        index.clear(replica);
        assert_eq!(
            (index.tally(replica), index.forgotten(replica)),
            (none, none)
        );
    }
}

#[test]
fn distinct_prompts_leave_it_as_large_as_the_bound() {
    let max_bytes = 4 << 20;
    let (mut index, replica) = bounded(max_bytes);
    let (prompts, mut largest) = (20_000, 0);
    for seed in 0..prompts {
        index.store(replica, NO_PARENT, &chain(seed + 1, 12));
        largest = largest.max(index.size_bytes());
    }
    assert!(
        largest <= max_bytes && largest > max_bytes * 9 / 10,
        "{largest} bytes"
    );
    assert_eq!(index.tally(replica).count, 12 * prompts);
    assert_eq!(
        index.forgotten(replica).count,
        12 * prompts - index.num_blocks() as u64
    );
    index.check().unwrap();
}
