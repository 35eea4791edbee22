//! A replica's tree for people to look at, a page of one node's branches at a time. A step looks at some runs only, and
//! names branches by their first blocks, so that the next step finds them whatever happened in between.

use super::run::{Run, RunId, Tick};
use super::{Index, ReplicaId};

/// Runs that a step looks at for names; in tests so few that it takes many.
const LOOKS: usize = if cfg!(test) { 2 } else { 64 };

/// Runs looked at below a branch, to say what hangs there.
pub(super) const BELOW: usize = if cfg!(test) { 4 } else { 64 };

/// The names of branches: of those that begin prompts, or of those below another one.
#[derive(Debug)]
pub struct Listing {
    /// First block of the branch they are below.
    below: Option<u64>,
    /// Where the next step begins, after the last look: None is the beginning, and at the end the end.
    pub after: Option<u64>,
    /// First blocks.
    pub found: Vec<u64>,
    limit: usize,
}

/// The block of this hash begins no branch of the replica, or not where it was: it went, or was joined to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBranch(pub u64);

/// Blocks of one replica without a branch inside: an edge of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Hash of its first block.
    pub first: u64,
    /// Blocks that the replica holds of it.
    pub blocks: u64,
    /// Replicas that hold its first block.
    pub replicas: u32,
    /// What comes before it is not known.
    pub detached: bool,
    /// Branches of the replica below it, and their blocks, as far as they were looked at.
    pub branches_below: u64,
    /// See there.
    pub blocks_below: u64,
    /// All of them were.
    pub all_below: bool,
    /// How many stores ago it, or one of those, was last stored or matched, on any replica.
    pub unused: Tick,
}

impl Listing {
    /// Of at most `limit` branches, after those of a page that ended with `after`.
    pub fn new(below: Option<u64>, after: Option<u64>, limit: usize) -> Self {
        Self {
            below,
            after,
            found: Vec::new(),
            limit: limit.max(1),
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() == self.limit
    }
}

impl Index {
    /// Names some more; whether there is more to do. Branches that come or go meanwhile may be missed.
    ///
    /// # Errors
    /// There is no such branch to go on from.
    pub fn list_step(&self, replica: ReplicaId, listing: &mut Listing) -> Result<bool, NoBranch> {
        listing.after = match listing.below {
            None => self.list_beginnings(replica, listing),
            Some(first) => self.list_below(replica, first, listing)?,
        };
        Ok(listing.after.is_some() && !listing.is_full())
    }

    /// In no order. Goes on by numbers of runs.
    fn list_beginnings(&self, replica: ReplicaId, listing: &mut Listing) -> Option<u64> {
        let slots = self.runs.num_slots() as u64;
        let from = listing.after.unwrap_or(0).min(slots);
        let to = slots.min(from + LOOKS as u64);
        for id in from..to {
            let begins = |run: &&Run| {
                let holds = |parent| holds_all(replica, &self.runs[parent]);
                run.holders.depth(replica, run.len()) > 0 && !run.parent.is_some_and(holds)
            };
            if let Some(run) = self.runs.get(id as RunId).filter(begins) {
                listing.found.push(run.span.first());
                if listing.is_full() {
                    return (id + 1 < slots).then_some(id + 1);
                }
            }
        }
        (to < slots).then_some(to)
    }

    /// The newest first. Goes on by first blocks.
    fn list_below(
        &self,
        replica: ReplicaId,
        first: u64,
        listing: &mut Listing,
    ) -> Result<Option<u64>, NoBranch> {
        let held = |&id: &RunId| self.runs[id].holders.depth(replica, self.runs[id].len()) > 0;
        let parent = self
            .starts
            .find(first)
            .filter(held)
            .ok_or(NoBranch(first))?;
        if !holds_all(replica, &self.runs[parent]) {
            return Ok(None);
        }
        let mut next = match listing.after {
            None => self.runs[parent].first_child,
            Some(after) => {
                let is_sibling = |&id: &RunId| self.runs[id].parent == Some(parent);
                let before = self.starts.find(after).filter(is_sibling);
                self.runs[before.ok_or(NoBranch(after))?].after
            }
        };
        let mut last = None;
        for _ in 0..LOOKS {
            let Some(id) = next.filter(|_| !listing.is_full()) else {
                break;
            };
            let run = &self.runs[id];
            last = Some(run.span.first());
            if held(&id) {
                listing.found.extend(last);
            }
            next = run.after;
        }
        Ok(last.filter(|_| next.is_some()))
    }

    /// The branch of a replica that begins with this block, if one does.
    pub fn branch(&self, replica: ReplicaId, first: u64) -> Option<Branch> {
        let id = self.starts.find(first)?;
        let run = &self.runs[id];
        let blocks = run.holders.depth(replica, run.len());
        let unused = |run: &Run| self.clock.wrapping_sub(run.last_used());
        let mut branch = Branch {
            first,
            blocks: blocks as u64,
            replicas: run.holders.len(),
            detached: run.orphan,
            branches_below: 0,
            blocks_below: 0,
            all_below: true,
            unused: unused(run),
        };
        if let Some(parent) = run.parent {
            branch.detached = !holds_all(replica, &self.runs[parent]);
        }
        let mut next = run.first_child.filter(|_| blocks == run.len());
        for looks in 0.. {
            let Some(child) = next else { break };
            if looks == BELOW {
                branch.all_below = false;
                break;
            }
            let run = &self.runs[child];
            let held = run.holders.depth(replica, run.len());
            if held > 0 {
                branch.branches_below += 1;
                branch.blocks_below += held as u64;
                branch.unused = branch.unused.min(unused(run));
            }
            next = run
                .first_child
                .filter(|_| held == run.len())
                .or_else(|| self.beside_or_above(child, id));
        }
        (blocks > 0).then_some(branch)
    }

    /// Stores so far; wraps around.
    pub fn clock(&self) -> Tick {
        self.clock
    }

    /// What follows all that is below a run, of what is below `top`.
    fn beside_or_above(&self, mut id: RunId, top: RunId) -> Option<RunId> {
        while self.runs[id].after.is_none() {
            id = self.runs[id].parent.filter(|&parent| parent != top)?;
        }
        self.runs[id].after
    }
}

fn holds_all(replica: ReplicaId, run: &Run) -> bool {
    run.holders.whole.contains(replica)
}
