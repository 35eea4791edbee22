//! What a match sees between the steps of an event, while the locator is away.

use proptest::prelude::*;

use super::tests::{Forest, chain, forest};
use super::{Index, Matches, ReplicaId, ReplicaSet};
use crate::chain::NO_PARENT;
use crate::delta::Removed;

const REPLICAS: usize = 3;

/// A change of one replica's blocks.
#[derive(Debug)]
pub(super) enum Change {
    Store { parent: u64, hashes: Vec<u64> },
    Remove(Removed),
    Clear,
}

/// Leading blocks of the prompt that ends with each block of a forest, by replica.
type Seen = Vec<Vec<usize>>;

struct Watched<'a> {
    forest: &'a Forest,
    index: Index,
    ids: Vec<ReplicaId>,
    seen: Vec<Seen>,
}

impl Watched<'_> {
    fn matches(&self) -> Seen {
        let mut all = ReplicaSet::default();
        self.ids.iter().for_each(|&id| all.insert(id));
        let mut matches = Matches::default();
        let mut seen = vec![Vec::new(); self.ids.len()];
        for block in 0..self.forest.parents.len() {
            self.index
                .walk(&self.forest.chain(block), &all, &mut matches);
            for (seen, &id) in seen.iter_mut().zip(&self.ids) {
                seen.push(matches.of(id));
            }
        }
        seen
    }

    /// After a step.
    fn look(&mut self) {
        let errand = self.index.errand();
        self.seen.push(self.matches());
        if let Some(mut errand) = errand {
            errand.run();
            self.index.done(errand);
        }
    }

    fn apply(&mut self, id: ReplicaId, change: &Change) -> u64 {
        let mut index = std::mem::take(&mut self.index);
        let changed = in_steps(&mut index, id, change, |index| {
            std::mem::swap(&mut self.index, index);
            self.look();
            std::mem::swap(&mut self.index, index);
        });
        self.index = index;
        changed
    }
}

/// How many blocks came or went. `after_step` is to do the errand, if one is due.
pub(super) fn in_steps(
    index: &mut Index,
    id: ReplicaId,
    change: &Change,
    mut after_step: impl FnMut(&mut Index),
) -> u64 {
    let mut changed = 0;
    match change {
        Change::Store { parent, hashes } => {
            let (mut parent, mut rest) = (*parent, &hashes[..]);
            while !rest.is_empty() {
                while index.seek_parent(id, parent) {
                    after_step(index);
                }
                let (new, done) = index.store_step(id, parent, &rest[..rest.len().min(3)]);
                changed += new;
                after_step(index);
                parent = rest[..done].last().copied().unwrap_or(parent);
                rest = &rest[done..];
            }
        }
        Change::Remove(range) => {
            let (mut left, mut goes_on) = (*range, true);
            while goes_on {
                let (gone, more) = index.remove_step(id, &mut left);
                changed += gone;
                goes_on = more;
                after_step(index);
            }
        }
        Change::Clear => {
            let (mut from, mut goes_on) = (0, true);
            while goes_on {
                let (held, more) = index.clear_step(id, &mut from);
                changed += held;
                goes_on = more;
                after_step(index);
            }
        }
    }
    changed
}

fn apply_whole(index: &mut Index, id: ReplicaId, change: &Change) -> u64 {
    match change {
        Change::Store { parent, hashes } => index.store(id, *parent, hashes),
        Change::Remove(range) => index.remove(id, range),
        Change::Clear => index.clear(id),
    }
}

/// What kind, of which replica, which block's path, and from where on.
type Drawn = (u32, usize, usize, usize);

fn events() -> impl Strategy<Value = Vec<Drawn>> {
    let drawn = (0..9u32, 0..REPLICAS, any::<usize>(), any::<usize>());
    prop::collection::vec(drawn, 0..40)
}

fn change(forest: &Forest, (kind, replica, block, from): Drawn) -> (usize, Change) {
    let path = forest.chain(block % forest.parents.len());
    let from = from % path.len();
    let change = match kind {
        0..5 => Change::Store {
            parent: from.checked_sub(1).map_or(NO_PARENT, |before| path[before]),
            hashes: path[from..].to_vec(),
        },
        5..8 => Change::Remove(Removed::of(&path[from..]).unwrap()),
        _ => Change::Clear,
    };
    (replica, change)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn between_two_steps_a_match_sees_what_is_between_before_and_after_the_event(
        forest in forest(),
        events in events(),
    ) {
        let mut whole = Index::default();
        let mut watched = Watched { forest: &forest, index: Index::default(), ids: Vec::new(), seen: Vec::new() };
        for _ in 0..REPLICAS {
            watched.ids.push(watched.index.add_replica());
            whole.add_replica();
        }
        for event in events {
            let (replica, change) = change(&forest, event);
            let id = watched.ids[replica];
            let before = watched.matches();
            prop_assert_eq!(watched.apply(id, &change), apply_whole(&mut whole, id, &change));
            let after = watched.matches();
            for seen in watched.seen.drain(..) {
                for other in (0..REPLICAS).filter(|&other| other != replica) {
                    prop_assert_eq!(&seen[other], &before[other]);
                }
                for (block, &seen) in seen[replica].iter().enumerate() {
                    let (before, after) = (before[replica][block], after[replica][block]);
                    prop_assert!((before.min(after)..=before.max(after)).contains(&seen));
                }
            }
            watched.index.check().unwrap();
            for &id in &watched.ids {
                prop_assert_eq!(watched.index.tally(id), whole.tally(id));
            }
            prop_assert_eq!(watched.index.num_runs(), whole.num_runs());
        }
    }
}

#[test]
fn entries_that_tidying_cannot_drop_keep_nobody_waiting() {
    let mut index = Index::default();
    let replica = index.add_replica();
    for number in 0..20 {
        let prompt = chain(100 * number + 1, 4);
        index.store(replica, NO_PARENT, &prompt);
        index.remove(replica, &Removed::of(&prompt[1..]).unwrap());
    }
    assert!(index.errand().is_none());
    assert_eq!(index.clear(replica), 20);
    index.check().unwrap();
}

#[test]
fn a_block_that_is_not_at_hand_is_looked_for_and_its_run_cut_in_steps_of_their_own() {
    let mut index = Index::default();
    let replica = index.add_replica();
    let (trunk, branch) = (chain(1, 20), chain(2, 5));
    index.store(replica, NO_PARENT, &trunk);
    assert!(!index.seek_parent(replica, NO_PARENT));
    assert!(!index.seek_parent(replica, trunk[19]));
    assert!(index.seek_parent(replica, trunk[9]));
    let mut errand = index.errand().expect("a block is sought");
    errand.run();
    index.done(errand);
    assert!(index.seek_parent(replica, trunk[9]));
    assert!(!index.seek_parent(replica, trunk[9]));
    assert_eq!(index.store_step(replica, trunk[9], &branch), (0, 0));
    assert_eq!(index.num_runs(), 2);
    assert!(!index.seek_parent(replica, trunk[9]));
    assert_eq!(index.store_step(replica, trunk[9], &branch), (5, 5));
    assert_eq!(index.num_runs(), 3);
    index.check().unwrap();
}
