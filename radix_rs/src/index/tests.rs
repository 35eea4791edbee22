//! Against a naive model: a set of hashes for each replica, matched by scanning.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Index, Matches, ReplicaId, ReplicaSet};
use crate::chain::NO_PARENT;
use crate::delta::Removed;

const REPLICAS: usize = 4;

/// A forest of blocks: each one's parent is an earlier block or none.
#[derive(Clone, Debug)]
pub(super) struct Forest {
    pub parents: Vec<Option<usize>>,
}

impl Forest {
    pub fn hash(block: usize) -> u64 {
        mix(block as u64 + 1)
    }

    /// Blocks from the start of the prompt to `block`.
    pub fn path(&self, block: usize) -> Vec<usize> {
        let mut path: Vec<_> = std::iter::successors(Some(block), |&b| self.parents[b]).collect();
        path.reverse();
        path
    }

    pub fn chain(&self, block: usize) -> Vec<u64> {
        self.path(block).into_iter().map(Self::hash).collect()
    }
}

/// Long stretches without a branch, with branches now and then.
pub(super) fn forest() -> impl Strategy<Value = Forest> {
    prop::collection::vec((0..8u32, any::<prop::sample::Index>()), 1..48).prop_map(|choices| {
        let parents = choices.iter().enumerate().map(|(block, (kind, pick))| {
            if block == 0 || *kind == 0 {
                None
            } else if *kind < 5 {
                Some(block - 1)
            } else {
                Some(pick.index(block))
            }
        });
        Forest {
            parents: parents.collect(),
        }
    })
}

/// `block`, `from` and `count` are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Store {
        replica: usize,
        block: usize,
        from: usize,
    },
    Remove {
        replica: usize,
        block: usize,
        count: usize,
    },
    Clear {
        replica: usize,
    },
    Rejoin {
        replica: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (replica, block) = (0..REPLICAS, any::<usize>());
    prop_oneof![
        8 => (replica.clone(), block, any::<usize>())
            .prop_map(|(replica, block, from)| Op::Store { replica, block, from }),
        8 => (replica.clone(), any::<usize>(), 1..6usize)
            .prop_map(|(replica, block, count)| Op::Remove { replica, block, count }),
        1 => replica.clone().prop_map(|replica| Op::Clear { replica }),
        1 => replica.prop_map(|replica| Op::Rejoin { replica }),
    ]
}

/// The index and its model, fed the same.
struct Pair {
    forest: Forest,
    index: Index,
    ids: Vec<ReplicaId>,
    held: Vec<BTreeSet<usize>>,
}

impl Pair {
    fn new(forest: Forest) -> Self {
        let mut index = Index::default();
        let ids = (0..REPLICAS).map(|_| index.add_replica()).collect();
        Self {
            forest,
            index,
            ids,
            held: vec![BTreeSet::new(); REPLICAS],
        }
    }

    fn store(&mut self, replica: usize, path: &[usize], from: usize) {
        let hashes: Vec<u64> = path[from..].iter().map(|&b| Forest::hash(b)).collect();
        let parent = from
            .checked_sub(1)
            .map_or(NO_PARENT, |before| Forest::hash(path[before]));
        let new = path[from..]
            .iter()
            .filter(|&&b| self.held[replica].insert(b))
            .count();
        assert_eq!(
            self.index.store(self.ids[replica], parent, &hashes),
            new as u64
        );
    }

    fn remove(&mut self, replica: usize, path: &[usize], count: usize) {
        let from = path.len().saturating_sub(count);
        let gone = path[from..]
            .iter()
            .filter(|&b| self.held[replica].remove(b))
            .count();
        let hashes: Vec<u64> = path[from..].iter().map(|&b| Forest::hash(b)).collect();
        let range = Removed::of(&hashes).unwrap_or_default();
        let removed = self.index.remove(self.ids[replica], &range);
        assert_eq!(removed, gone as u64);
    }

    fn clear(&mut self, replica: usize) {
        let held = std::mem::take(&mut self.held[replica]).len();
        assert_eq!(self.index.clear(self.ids[replica]), held as u64);
    }

    fn rejoin(&mut self, replica: usize) {
        self.held[replica].clear();
        self.index.clear(self.ids[replica]);
        self.index.remove_replica(self.ids[replica]);
        self.ids[replica] = self.index.add_replica();
    }

    fn check(&self) {
        self.index.check().unwrap();
        for (replica, held) in self.held.iter().enumerate() {
            let mut found = self.index.blocks(self.ids[replica]);
            let mut expected: Vec<_> = held.iter().map(|&b| Forest::hash(b)).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
        for block in 0..self.forest.parents.len() {
            self.check_matches(block);
        }
    }

    fn check_matches(&self, block: usize) {
        let path = self.forest.path(block);
        let mut chain = self.forest.chain(block);
        chain.push(u64::MAX);
        let mut all = ReplicaSet::default();
        self.ids.iter().for_each(|&id| all.insert(id));
        let mut matches = Matches::default();
        self.index.walk(&chain, &all, &mut matches);
        for (replica, held) in self.held.iter().enumerate() {
            let expected = path.iter().take_while(|b| held.contains(b)).count();
            assert_eq!(matches.of(self.ids[replica]), expected);
            let holds = self.index.holds(self.ids[replica], Forest::hash(block));
            assert_eq!(holds, held.contains(&block));
        }
    }

    /// Runs of an index that was given the same content from scratch, in another order.
    fn runs_if_built_anew(&self) -> usize {
        let mut index = Index::default();
        for held in self.held.iter().rev() {
            let id = index.add_replica();
            for &block in held {
                let chain = self.forest.chain(block);
                let (parent, last) = match &chain[..] {
                    [.., parent, last] => (*parent, *last),
                    [last] => (NO_PARENT, *last),
                    [] => unreachable!(),
                };
                index.store(id, parent, &[last]);
            }
        }
        index.num_runs()
    }

    /// The longest removal that starts at `block` and leaves no block of the replica without its parent.
    fn removable(&self, replica: usize, block: usize) -> usize {
        let held = &self.held[replica];
        let mut children: BTreeMap<usize, usize> = BTreeMap::new();
        for &child in held {
            if let Some(parent) = self.forest.parents[child] {
                *children.entry(parent).or_default() += 1;
            }
        }
        let path = self.forest.path(block);
        let blocks = path.iter().rev().enumerate();
        blocks
            .take_while(|(i, b)| {
                let removed_before = usize::from(*i > 0);
                held.contains(b) && children.get(b).copied().unwrap_or(0) == removed_before
            })
            .count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mirrors_of_right_publishers_equal_their_sets(forest in forest(), ops in prop::collection::vec(op(), 0..60)) {
        let blocks = forest.parents.len();
        let mut pair = Pair::new(forest);
        for op in ops {
            match op {
                Op::Store { replica, block, from } => {
                    let path = pair.forest.path(block % blocks);
                    // Blocks it holds may be said again; the run follows one it holds.
                    let held = path.iter().take_while(|b| pair.held[replica].contains(b)).count();
                    pair.store(replica, &path, (from % (held + 1)).min(path.len() - 1));
                }
                Op::Remove { replica, block, count } => {
                    let block = block % blocks;
                    let removable = pair.removable(replica, block);
                    let count = if pair.held[replica].contains(&block) {
                        count.min(removable)
                    } else {
                        1 // unknown, or evicted twice
                    };
                    let path = pair.forest.path(block);
                    pair.remove(replica, &path, count);
                }
                Op::Clear { replica } => pair.clear(replica),
                Op::Rejoin { replica } => pair.rejoin(replica),
            }
            pair.check();
            prop_assert_eq!(pair.index.num_runs(), pair.runs_if_built_anew());
        }
        for replica in 0..REPLICAS {
            pair.rejoin(replica);
        }
        prop_assert_eq!((pair.index.num_runs(), pair.index.num_blocks()), (0, 0));
    }

    #[test]
    fn mirrors_of_publishers_that_leave_holes_equal_their_sets(
        forest in forest(),
        ops in prop::collection::vec(op(), 0..60),
    ) {
        let blocks = forest.parents.len();
        let mut pair = Pair::new(forest);
        for op in ops {
            match op {
                Op::Store { replica, block, from } => {
                    let path = pair.forest.path(block % blocks);
                    pair.store(replica, &path, from % path.len());
                }
                Op::Remove { replica, block, .. } => {
                    let path = pair.forest.path(block % blocks);
                    pair.remove(replica, &path, 1);
                }
                Op::Clear { replica } => pair.clear(replica),
                Op::Rejoin { replica } => pair.rejoin(replica),
            }
            pair.check();
        }
        for replica in 0..REPLICAS {
            pair.clear(replica);
        }
        prop_assert_eq!((pair.index.num_runs(), pair.index.num_blocks()), (0, 0));
    }

    #[test]
    fn a_publisher_that_lies_about_parents_spoils_no_other_mirror(
        events in prop::collection::vec(
            (0..REPLICAS, any::<bool>(), 0..12u64, prop::collection::vec(1..12u64, 0..6), 0..8u32),
            0..80,
        ),
    ) {
        let mut index = Index::default();
        let ids: Vec<_> = (0..REPLICAS).map(|_| index.add_replica()).collect();
        let prompt: Vec<u64> = (1..12).collect();
        let mut depths = [0; REPLICAS];
        for (replica, store, parent, hashes, count) in events {
            match (replica, store) {
                (0, true) => _ = index.store(ids[0], parent, &hashes),
                (0, false) => _ = index.remove(ids[0], &range(parent, count)),
                (_, true) if depths[replica] == 0 => {
                    let depth = usize::try_from(parent).unwrap().min(prompt.len());
                    index.store(ids[replica], NO_PARENT, &prompt[..depth]);
                    depths[replica] = depth;
                }
                (_, false) if depths[replica] > 0 => {
                    depths[replica] -= 1;
                    prop_assert_eq!(index.remove(ids[replica], &range(prompt[depths[replica]], 1)), 1);
                }
                _ => {}
            }
            index.check().unwrap();
            for (&id, depth) in ids.iter().zip(depths).skip(1) {
                let mut found = index.blocks(id);
                found.sort_unstable();
                prop_assert_eq!(&found, &prompt[..depth]);
                prop_assert_eq!(index.tally(id).count, depth as u64);
            }
        }
        for &id in &ids {
            index.clear(id);
        }
        prop_assert_eq!((index.num_runs(), index.num_blocks()), (0, 0));
    }
}

/// Spreads small numbers over 64 bits: the finaliser of `MurmurHash3`.
fn mix(number: u64) -> u64 {
    let mut x = number;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// As a publisher says it that knows no first block.
fn range(last: u64, count: u32) -> Removed {
    Removed {
        last,
        count,
        ..Removed::default()
    }
}

pub(super) fn chain(seed: u64, len: u64) -> Vec<u64> {
    (0..len).map(|i| mix(seed << 32 | (i + 1))).collect()
}

#[test]
fn a_prefix_held_by_many_replicas_is_stored_once() {
    let mut index = Index::default();
    let prefix = chain(1, 500);
    for _ in 0..100 {
        let id = index.add_replica();
        index.store(id, NO_PARENT, &prefix);
    }
    assert_eq!((index.num_runs(), index.num_blocks()), (1, 500));
    let all = index.size_bytes() as u64;
    assert_eq!(index.mirror_size_bytes(0), all / 100);
    index.check().unwrap();
}

#[test]
fn one_replicas_eviction_leaves_the_others_match() {
    let mut index = Index::default();
    let (a, b) = (index.add_replica(), index.add_replica());
    let prefix = chain(1, 8);
    index.store(a, NO_PARENT, &prefix);
    index.store(b, NO_PARENT, &prefix);
    assert_eq!(index.remove(a, &range(prefix[7], 8)), 8);
    assert_eq!(index.remove(a, &range(prefix[7], 8)), 0);
    assert_eq!((index.tally(a).count, index.tally(b).count), (0, 8));
    assert!(index.holds(b, prefix[7]) && !index.holds(a, prefix[0]));
    index.check().unwrap();
}

#[test]
fn a_block_stored_twice_goes_with_one_removal() {
    let mut index = Index::default();
    let a = index.add_replica();
    index.store(a, NO_PARENT, &[5]);
    assert_eq!(index.store(a, NO_PARENT, &[5]), 0);
    assert_eq!(index.remove(a, &range(5, 1)), 1);
    assert_eq!(index.remove(a, &range(5, 1)), 0);
    assert_eq!(index.tally(a), super::Tally::default());
}

#[test]
fn runs_that_a_branch_had_cut_are_joined_when_it_goes() {
    let mut index = Index::default();
    let (a, b) = (index.add_replica(), index.add_replica());
    let trunk = chain(1, 10);
    index.store(a, NO_PARENT, &trunk);
    index.store(b, NO_PARENT, &trunk[..6]);
    assert_eq!(index.num_runs(), 1);
    let branch = chain(2, 4);
    index.store(b, trunk[5], &branch);
    assert_eq!(index.num_runs(), 3);
    index.remove(b, &range(branch[3], 4));
    assert_eq!(index.num_runs(), 1);
    index.check().unwrap();
}

#[test]
fn children_stored_before_their_parent_join_it_when_it_comes() {
    let mut index = Index::default();
    let a = index.add_replica();
    let all = chain(1, 6);
    index.store(a, all[2], &all[3..]);
    index.store(a, NO_PARENT, &all[..3]);
    assert_eq!(index.num_runs(), 2);
    index.store(a, all[2], &all[3..4]);
    assert_eq!(index.num_runs(), 1);
    assert_eq!(index.remove(a, &range(all[5], 6)), 6);
    assert_eq!(index.num_blocks(), 0);
}

#[test]
fn a_million_changes_that_leave_the_content_as_it_was_leave_the_tree_as_it_was() {
    let mut index = Index::default();
    let ids: Vec<_> = (0..REPLICAS).map(|_| index.add_replica()).collect();
    let prompts: Vec<_> = (1..=64).map(|seed| chain(seed, 40)).collect();
    for (number, prompt) in prompts.iter().enumerate() {
        index.store(ids[number % REPLICAS], NO_PARENT, prompt);
    }
    let before = (index.num_runs(), index.num_blocks());
    let mut early_bytes = 0;
    let mut stored = Vec::new();
    for change in 0..1_000_000u64 {
        if change == 20_000 {
            early_bytes = index.size_bytes();
        }
        let random = mix(change + 1);
        if stored.len() < 200 && (random & 1 == 0 || stored.is_empty()) {
            let prompt = &prompts[(random >> 8) as usize % prompts.len()];
            let at = (random >> 16) as usize % prompt.len();
            // Replicas that did not hold the prompt get a branch without what comes before it, or with.
            let id = ids[(random >> 32) as usize % REPLICAS];
            let branch = chain(1000 + change, 1 + (random >> 40) % 3);
            index.store(id, prompt[at], &branch);
            stored.push((id, branch));
        } else {
            let (id, branch) = stored.swap_remove((random >> 8) as usize % stored.len());
            let count = branch.len() as u32;
            assert_eq!(
                index.remove(id, &range(branch[branch.len() - 1], count)),
                u64::from(count)
            );
        }
    }
    for (id, branch) in stored {
        index.remove(id, &range(branch[branch.len() - 1], branch.len() as u32));
    }
    assert_eq!((index.num_runs(), index.num_blocks()), before);
    index.check().unwrap();
    // Tables keep the room of their fullest moment, which comes early.
    let size = index.size_bytes();
    assert!(
        size < early_bytes * 5 / 4,
        "{size} bytes, {early_bytes} early on"
    );
}
