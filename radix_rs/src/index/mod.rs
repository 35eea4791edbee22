//! The router's tree: what every replica holds, as one radix tree over block hashes.
//!
//! An edge is a `run` of blocks without a branch inside, stored once however many replicas hold it. A
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
//! of a run stored after an unknown block stays unknown until somebody stores it after a known one. A publisher
//! that puts one block below two parents has it at two places: its own mirror then counts what its tree does not,
//! which its digest shows, and what others hold is looked for where they hold it.
//!
//! # Where things are
//! The hashes of a run are a `span` of `chunk`s, and `holders` say who holds how much of it. Two ways lead
//! to a run: from its first block (`starts`), which is all that a walk and most stores need, and from any block
//! (`locator`, in `blocks` with the chunks), which a branch and a removal need once for many blocks. Storing
//! and removing a block touch no table at random, which would cost more than the rest together: a block is
//! copied, added to the digest and noted at the end of a bucket.
//!
//! Events are applied in steps, between which others may read. What concerns the locator alone, which no walk
//! needs, and memory nobody uses yet is an errand, to be run while they do: putting new entries into their buckets,
//! tidying those, looking for the block that the next step begins at, and touching what new blocks will be written to.
//!
//! `apply` changes what a replica holds; `seek` finds where it goes on; `shape` cuts and joins runs; `bound` forgets, in the order of a `queue`;
//! `walk` reads, and `browse` for people; `check` proves.
//!
//! One index serves all models: chains of different namespaces share no hash.
#![expect(
    clippy::cast_possible_truncation,
    reason = "replicas, runs and positions are u32: 2^32 blocks would take 128 GiB"
)]

mod apply;
mod arena;
mod blocks;
mod bound;
#[cfg(test)]
mod bound_tests;
mod browse;
#[cfg(test)]
mod browse_tests;
mod check;
mod chunk;
mod holders;
mod locator;
mod position;
mod queue;
mod replica_set;
mod run;
mod seek;
mod shape;
mod span;
mod starts;
#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tests;
mod walk;

pub use browse::{Branch, Listing, NoBranch};
pub use position::{Outcome, Position};
pub use replica_set::{ReplicaId, ReplicaSet};
pub use walk::Matches;
pub(crate) use walk::{bisect, common};

use apply::Recent;
use arena::Arena;
pub(crate) use blocks::Errand;
use blocks::{At, Blocks};
use queue::Queue;
use run::{RunId, Tick};
use seek::Sought;
use starts::Starts;

/// How many blocks a replica holds, and the wrapping sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks.
    pub count: u64,
    /// Wrapping sum of their hashes.
    pub digest: u64,
}

impl Tally {
    fn of<'a>(pieces: impl Iterator<Item = &'a [u64]>) -> Self {
        pieces.fold(Self::default(), |sum, hashes| Self {
            count: sum.count + hashes.len() as u64,
            digest: hashes.iter().copied().fold(sum.digest, u64::wrapping_add),
        })
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.digest = self.digest.wrapping_add(other.digest);
    }

    fn subtract(&mut self, other: Self) {
        self.count -= other.count;
        self.digest = self.digest.wrapping_sub(other.digest);
    }
}

/// The blocks of all replicas.
#[derive(Debug)]
pub struct Index {
    runs: Arena,
    starts: Starts,
    blocks: Blocks,
    /// Of the blocks that are here, by replica; removed ones are zero and in `free`.
    known: Vec<Tally>,
    /// Of those that the bound made it forget, by replica.
    forgotten: Vec<Tally>,
    /// By replica.
    recent: Vec<Recent>,
    free: Vec<ReplicaId>,
    /// Which runs go first.
    queue: Queue,
    clock: Tick,
    max_bytes: usize,
    /// Of all runs, see [`Run::heap_bytes`](run::Run::heap_bytes).
    run_heap_bytes: usize,
    /// Runs whose parent is not known, though they have one.
    orphans: usize,
    /// Runs that a removal touched, still to be settled.
    touched: Vec<RunId>,
    /// The run that was looked at before it is joined.
    looked_at: Option<RunId>,
    /// A replica is being cleared, and still holds blocks that are not counted any more.
    dropping: bool,
    /// For the next step.
    sought: Option<Sought>,
}

impl Default for Index {
    /// Empty and without a bound.
    fn default() -> Self {
        Self {
            runs: Arena::default(),
            starts: Starts::default(),
            blocks: Blocks::default(),
            known: Vec::new(),
            forgotten: Vec::new(),
            recent: Vec::new(),
            free: Vec::new(),
            queue: Queue::default(),
            clock: 0,
            max_bytes: usize::MAX,
            run_heap_bytes: 0,
            orphans: 0,
            touched: Vec::new(),
            looked_at: None,
            dropping: false,
            sought: None,
        }
    }
}

impl Index {
    /// Makes room for a replica that holds nothing.
    pub fn add_replica(&mut self) -> ReplicaId {
        if let Some(replica) = self.free.pop() {
            return replica;
        }
        self.known.push(Tally::default());
        self.forgotten.push(Tally::default());
        self.recent.push(Recent::default());
        (self.known.len() - 1) as ReplicaId
    }

    /// Forgets a replica that holds nothing; its number may be given out again.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        self.free.push(replica);
    }

    /// What the replica holds, in two numbers, with what was forgotten of it.
    pub fn tally(&self, replica: ReplicaId) -> Tally {
        let mut tally = self.known[replica as usize];
        tally.add(self.forgotten[replica as usize]);
        tally
    }

    /// What the replica holds and the bound made the index forget.
    pub fn forgotten(&self, replica: ReplicaId) -> Tally {
        self.forgotten[replica as usize]
    }

    /// Whether the replica is known to hold this block.
    pub fn holds(&self, replica: ReplicaId, hash: u64) -> bool {
        let held = |at| self.is_held(replica, at);
        self.blocks.find(&self.runs, hash, held).is_some()
    }

    fn is_held(&self, replica: ReplicaId, At { run, offset }: At) -> bool {
        let run = &self.runs[run];
        run.holders.depth(replica, run.len()) > offset
    }

    fn find(&self, hash: u64) -> Option<At> {
        self.blocks.find(&self.runs, hash, |_| true)
    }

    /// The hashes a replica is known to hold, in no order. Looks at every run.
    pub fn blocks(&self, replica: ReplicaId) -> Vec<u64> {
        self.runs
            .iter()
            .flat_map(|(_, run)| {
                let depth = run.holders.depth(replica, run.len());
                run.span.range(0, depth)
            })
            .collect()
    }

    /// What is to be done after a step, if anything is, and can be done while others read the index.
    pub(crate) fn errand(&mut self) -> Option<Errand> {
        self.blocks
            .errand(self.sought.as_ref().and_then(Sought::asks))
    }

    /// It is done, before the next step.
    pub(crate) fn done(&mut self, errand: Errand) {
        let places = self.blocks.done(errand);
        if let (Some(sought), Some(places)) = (&mut self.sought, places) {
            sought.may_be_at(places);
        }
        self.forget_excess(); // what was tidied may take more than it did
    }

    fn tidy(&mut self) {
        if let Some(mut errand) = self.errand() {
            errand.run();
            self.done(errand);
        }
    }

    /// Edges of the tree.
    pub fn num_runs(&self) -> usize {
        self.runs.len()
    }

    /// Distinct blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes the whole index takes.
    pub fn size_bytes(&self) -> usize {
        let runs = self.runs.size_bytes() + self.run_heap_bytes;
        runs + self.blocks.size_bytes() + self.starts.size_bytes()
    }

    /// A replica's share of [`Self::size_bytes`], by its blocks.
    pub fn mirror_size_bytes(&self, replica: ReplicaId) -> u64 {
        let all: u64 = self.known.iter().map(|tally| tally.count).sum();
        let own = u128::from(self.known[replica as usize].count);
        let share = self.size_bytes() as u128 * own / u128::from(all.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
