//! A replica's tree, looked at page by page, is the replica's tree.

use proptest::prelude::*;

use super::browse::BELOW;
use super::tests::{chain, forest};
use super::{Branch, Index, Listing, NoBranch, ReplicaId};
use crate::chain::NO_PARENT;
use crate::delta::Removed;

fn page(
    index: &Index,
    replica: ReplicaId,
    below: Option<u64>,
    after: Option<u64>,
    limit: usize,
) -> Listing {
    let mut listing = Listing::new(below, after, limit);
    while index.list_step(replica, &mut listing).unwrap() {}
    listing
}

/// All branches below one, page after page.
fn level(index: &Index, replica: ReplicaId, below: Option<u64>, limit: usize) -> Vec<Branch> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let listing = page(index, replica, below, after, limit);
        assert!(listing.found.len() <= limit);
        found.extend(listing.found);
        after = listing.after;
        if after.is_none() {
            break;
        }
    }
    let branches = found.iter().map(|&first| index.branch(replica, first));
    branches.map(Option::unwrap).collect()
}

/// How many branches there are below one, and their blocks, by going to every end.
fn all_below(index: &Index, replica: ReplicaId, below: Option<u64>, limit: usize) -> (u64, u64) {
    let mut sum = (0, 0);
    for branch in level(index, replica, below, limit) {
        let (branches, blocks) = all_below(index, replica, Some(branch.first), limit);
        let told = (branch.branches_below, branch.blocks_below);
        assert!(told.0 <= branches && told.1 <= blocks);
        assert!(!branch.all_below || told == (branches, blocks));
        assert!(branch.blocks > 0 && branch.replicas > 0);
        assert_eq!(branch.detached, below.is_none() && detached(index, &branch));
        sum = (sum.0 + 1 + branches, sum.1 + branch.blocks + blocks);
    }
    sum
}

/// A branch that is listed among the beginnings, and begins no prompt.
fn detached(index: &Index, branch: &Branch) -> bool {
    let run = &index.runs[index.starts.find(branch.first).unwrap()];
    run.orphan || run.parent.is_some()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_block_a_replica_holds_is_found_once_whatever_the_size_of_a_page(
        forest in forest(),
        ops in prop::collection::vec((0..3u32, any::<usize>(), any::<bool>()), 0..60),
        limit in 1..5usize,
    ) {
        let mut index = Index::default();
        (0..3).for_each(|_| _ = index.add_replica());
        for (replica, block, store) in ops {
            let chain = forest.chain(block % forest.parents.len());
            if store {
                index.store(replica, NO_PARENT, &chain);
            } else {
                // Anywhere: what follows has no beginning then.
                let last = Removed::of(&chain[chain.len() - 1..]).unwrap();
                index.remove(replica, &last);
            }
        }
        index.check().unwrap();
        for replica in 0..3 {
            let (_, blocks) = all_below(&index, replica, None, limit);
            prop_assert_eq!(blocks, index.tally(replica).count);
        }
    }
}

/// A trunk of 10 blocks with `branches` of 3 below it, the last one the newest.
fn bush(branches: u64) -> (Index, ReplicaId, Vec<u64>, Vec<u64>) {
    let mut index = Index::default();
    let a = index.add_replica();
    let trunk = chain(1, 10);
    index.store(a, NO_PARENT, &trunk);
    let mut firsts = Vec::new();
    for branch in 0..branches {
        let blocks = chain(2 + branch, 3);
        index.store(a, trunk[9], &blocks);
        firsts.push(blocks[0]);
    }
    (index, a, trunk, firsts)
}

#[test]
fn a_branch_says_what_it_holds_who_shares_it_and_what_is_below() {
    let (mut index, a, trunk, _) = bush(3);
    let b = index.add_replica();
    index.store(b, NO_PARENT, &trunk[..4]);
    let expected = Branch {
        first: trunk[0],
        blocks: 10,
        replicas: 2,
        detached: false,
        branches_below: 3,
        blocks_below: 9,
        all_below: true,
        unused: 0,
    };
    assert_eq!(level(&index, a, None, 9), [expected]);
    let own = Branch {
        blocks: 4,
        branches_below: 0,
        blocks_below: 0,
        ..expected
    };
    assert_eq!(level(&index, b, None, 9), [own]);
    assert!(level(&index, b, Some(trunk[0]), 9).is_empty());
}

#[test]
fn the_newest_branch_comes_first_and_says_how_long_it_was_not_used() {
    let (index, a, trunk, mut firsts) = bush(3);
    firsts.reverse();
    let found = level(&index, a, Some(trunk[0]), 2);
    assert_eq!(found.iter().map(|b| b.first).collect::<Vec<_>>(), firsts);
    assert_eq!(
        found.iter().map(|b| b.unused).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn no_more_is_looked_at_below_a_branch_than_its_bound() {
    let (index, a, trunk, _) = bush(BELOW as u64 + 1);
    let trunk = index.branch(a, trunk[0]).unwrap();
    assert!(!trunk.all_below);
    assert_eq!(trunk.branches_below, BELOW as u64);
}

#[test]
fn a_page_goes_on_where_the_one_before_ended_though_branches_came_meanwhile() {
    let (mut index, a, trunk, firsts) = bush(4);
    let first = page(&index, a, Some(trunk[0]), None, 2);
    assert_eq!(first.found, [firsts[3], firsts[2]]);
    index.store(a, trunk[9], &chain(99, 3));
    let second = page(&index, a, Some(trunk[0]), first.after, 2);
    assert_eq!(second.found, [firsts[1], firsts[0]]);
    assert_eq!(second.after, None);
}

#[test]
fn what_begins_no_branch_or_went_is_refused() {
    let (mut index, a, trunk, firsts) = bush(2);
    let refused = |index: &Index, below, after| {
        let mut listing = Listing::new(Some(below), after, 9);
        index.list_step(a, &mut listing).unwrap_err()
    };
    assert_eq!(refused(&index, trunk[3], None), NoBranch(trunk[3]));
    let other = Some(trunk[0]);
    assert_eq!(refused(&index, trunk[0], other), NoBranch(trunk[0]));
    let gone = chain(3, 3);
    index.remove(a, &Removed::of(&gone).unwrap());
    assert_eq!(refused(&index, firsts[1], None), NoBranch(firsts[1]));
    assert_eq!(index.branch(a, firsts[1]), None);
}
