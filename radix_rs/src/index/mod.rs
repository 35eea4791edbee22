//! The router's tree: what every replica holds, as one radix tree over block hashes.
//!
//! An edge is a [`run`] of blocks without a branch inside, stored once however many replicas hold it. A
//! replica holds a prefix of each run, so a run needs one set for those that hold all of it and a list of
//! (replica, depth) for the others, and one walk over the runs answers for all replicas.
//!
//! What must hold: a replica's `count` and `digest` are those of the set of hashes it holds, whatever was
//! stored or removed, in any order and however often. The form is canonical: runs are cut only where
//! the tree branches, or where a replica holds blocks without those before them, and are joined again when
//! the reason goes. Blocks nobody holds are forgotten, except those that a held block descends from: they
//! stay until it goes, so that its chain stays known.
//!
//! A hash names its whole prefix, so its parent is a fact, and publishers are believed about it. The parent
//! of a run stored after an unknown block stays unknown until somebody stores it after a known one.
//!
//! One index serves all models: chains of different namespaces share no hash.
#![expect(
    clippy::cast_possible_truncation,
    reason = "replicas, runs and positions are u32: 2^32 blocks would take 128 GiB"
)]

mod apply;
mod arena;
mod block_map;
mod check;
mod position;
mod replica_set;
mod run;
mod shape;
#[cfg(test)]
mod tests;
mod walk;

use crate::chain::mix;

pub use position::{Outcome, Position};
pub use replica_set::ReplicaId;
pub(crate) use replica_set::ReplicaSet;
pub use walk::Matches;
pub(crate) use walk::{bisect, common};

use arena::Arena;
use block_map::BlockMap;

/// How many blocks a replica holds, and the wrapping sum of [`mix`] over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks.
    pub count: u64,
    /// Wrapping sum of [`mix`] over them.
    pub digest: u64,
}

impl Tally {
    fn add(&mut self, hashes: &[u64]) {
        self.count += hashes.len() as u64;
        for &hash in hashes {
            self.digest = self.digest.wrapping_add(mix(hash));
        }
    }

    fn subtract(&mut self, hashes: &[u64]) {
        self.count -= hashes.len() as u64;
        for &hash in hashes {
            self.digest = self.digest.wrapping_sub(mix(hash));
        }
    }
}

/// The blocks of all replicas.
#[derive(Debug, Default)]
pub struct Index {
    runs: Arena,
    blocks: BlockMap,
    /// By replica; removed ones are zero and in `free`.
    tallies: Vec<Tally>,
    free: Vec<ReplicaId>,
    /// First hashes of the runs a removal touched, kept to spare the allocation.
    touched: Vec<u64>,
}

impl Index {
    /// Makes room for a replica that holds nothing.
    pub fn add_replica(&mut self) -> ReplicaId {
        if let Some(replica) = self.free.pop() {
            return replica;
        }
        self.tallies.push(Tally::default());
        (self.tallies.len() - 1) as ReplicaId
    }

    /// Forgets a replica; its number may be given out again.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        self.clear(replica);
        self.free.push(replica);
    }

    /// What the replica holds, in two numbers.
    pub fn tally(&self, replica: ReplicaId) -> Tally {
        self.tallies[replica as usize]
    }

    /// Whether the replica holds this block.
    pub fn holds(&self, replica: ReplicaId, hash: u64) -> bool {
        self.blocks.find(hash).is_some_and(|at| {
            let run = &self.runs[at.run];
            run.depth(replica) > (at.position - run.start) as usize
        })
    }

    /// The hashes a replica holds, in no order. Looks at every run.
    pub fn blocks(&self, replica: ReplicaId) -> Vec<u64> {
        self.runs
            .iter()
            .flat_map(|(_, run)| &run.hashes[..run.depth(replica)])
            .copied()
            .collect()
    }

    /// Edges of the tree.
    pub fn num_runs(&self) -> usize {
        self.runs.len()
    }

    /// Distinct blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes the whole index takes, within some tens of percent: sets and lists of holders beyond their
    /// inline part, and room the runs have to grow, are not counted.
    pub fn size_bytes(&self) -> usize {
        self.blocks.size_bytes() + self.runs.size_bytes() + self.blocks.len() * size_of::<u64>()
    }

    /// A replica's share of [`Self::size_bytes`], by its blocks.
    pub fn mirror_size_bytes(&self, replica: ReplicaId) -> u64 {
        let all: u64 = self.tallies.iter().map(|tally| tally.count).sum();
        let own = u128::from(self.tally(replica).count);
        let share = self.size_bytes() as u128 * own / u128::from(all.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
