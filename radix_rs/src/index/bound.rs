//! A bound on the memory of the index, and an account of what it made the index forget.
//!
//! Over the bound the ends of branches go, those that were not used for longest first, for all replicas at once.
//! Of each replica the count and digest of what was forgotten remain: with those of what is known they are the
//! replica's own, so that every batch still proves that nothing else is missing. An event that concerns
//! forgotten blocks changes their account:
//! - blocks stored after one that is not known are as good as forgotten: no prompt could match them;
//! - a removal says its range's first block, count and digest, so that what is known of the range, from that first
//!   block on, is taken from what is known, and the rest from what was forgotten.
//!
//! Both rest on a publisher that tells of changes alone. One that stores a block again which was forgotten has it
//! counted twice, which its batch then shows.

use super::blocks::At;
use super::queue::Queue;
use super::run::{RunId, Tick};
use super::{Index, ReplicaId, Tally};
use crate::delta::Removed;

/// Blocks that are forgotten at once: what is left of a branch goes on being used.
const PIECE: usize = if cfg!(test) { 3 } else { 64 };

/// Runs that are let be, at most, before one is forgotten.
const CHANCES: usize = 64;

impl Index {
    /// Bytes above which it forgets.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Sets the bound, at first there is none.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.forget_excess();
    }

    /// Forgets until the bound is kept.
    pub(super) fn forget_excess(&mut self) {
        while !self.dropping
            && self.size_bytes() > self.max_bytes
            && let Some(run) = self.next_to_forget()
        {
            self.forget_end(run);
            // What is not needed for the bound can wait until nobody does.
            if self.size_bytes() > self.max_bytes
                && let Some(mut errand) = self.blocks.errand(None)
            {
                errand.run();
                self.blocks.done(errand);
            }
        }
    }

    /// The first run in the queue, unless it was used later than the next one was queued.
    fn next_to_forget(&mut self) -> Option<RunId> {
        let mut chances = CHANCES;
        while let Some(id) = self.queue.first() {
            let run = &self.runs[id];
            let is_end = run.children == 0;
            let next = Queue::queued_after(&self.runs, id);
            let goes = next.is_none_or(|next| !is_later(run.last_used(), next));
            if is_end && (goes || chances == 0) {
                return Some(id);
            }
            self.queue.remove(&mut self.runs, id);
            if is_end {
                self.queue.push(&mut self.runs, id, self.clock);
                chances -= 1;
            }
        }
        None
    }

    /// Forgets the last blocks of a run without children.
    fn forget_end(&mut self, id: RunId) {
        self.sought = None;
        let run = &mut self.runs[id];
        let (len, used) = (run.len(), run.last_used());
        let kept = len.saturating_sub(PIECE);
        let all = Tally::of(run.span.pieces(kept, len));
        for replica in run.holders.whole.iter() {
            self.known[replica as usize].subtract(all);
            self.forgotten[replica as usize].add(all);
        }
        for &(replica, depth) in &run.holders.partial {
            let depth = depth as usize;
            if depth > kept {
                let part = Tally::of(run.span.pieces(kept, depth));
                self.known[replica as usize].subtract(part);
                self.forgotten[replica as usize].add(part);
            }
        }
        if kept > 0 {
            self.blocks.truncate(&mut run.span, kept);
            run.holders.truncate(kept);
            self.settle(id);
        } else if let Some(parent) = self.take(id) {
            self.goes_next(parent, used);
            self.settle(parent);
        }
    }

    /// A run has lost its last child, perhaps, which was last used at `used`.
    pub(super) fn ends_branch(&mut self, id: RunId, used: Tick) {
        let run = &self.runs[id];
        if is_later(used, run.last_used()) {
            run.touch(used);
        }
        if run.children == 0 && run.place.is_none() {
            self.queue.push(&mut self.runs, id, self.clock);
        }
    }

    /// A run whose last child was forgotten, perhaps, goes on with it, unless it was used later than that.
    fn goes_next(&mut self, id: RunId, used: Tick) {
        let run = &self.runs[id];
        if run.children == 0 && !is_later(run.last_used(), used) {
            self.queue.remove(&mut self.runs, id);
            self.queue.push_first(&mut self.runs, id, self.clock);
        }
    }

    /// Whether the block before a run that the replica stores is one that was forgotten.
    pub(super) fn follows_forgotten(&self, replica: ReplicaId, parent: Option<At>) -> bool {
        self.forgotten[replica as usize].count > 0
            && !parent.is_some_and(|at| self.is_held(replica, at))
    }

    /// Takes what was forgotten of a range from the account: where the rest ends, and its tally.
    ///
    /// A range that does not fit leaves everything as it is, and its batch shows a mismatch.
    pub(super) fn remove_forgotten(
        &mut self,
        replica: ReplicaId,
        removed: &Removed,
    ) -> Option<(At, Tally)> {
        let mut rest = match (removed.count, removed.first) {
            (1, _) => Tally {
                count: 1,
                digest: removed.last,
            },
            (_, 0) => return None,
            (count, _) => Tally {
                count: u64::from(count),
                digest: removed.digest,
            },
        };
        let known = self.known_from(replica, removed.first);
        let known_tally = known.map_or_else(Tally::default, |(_, tally)| tally);
        let account = &mut self.forgotten[replica as usize];
        if known_tally.count >= rest.count || rest.count - known_tally.count > account.count {
            return None;
        }
        rest.subtract(known_tally);
        account.subtract(rest);
        known
    }

    /// What is known from the replica's block `first` on, after which it has no branch: where it ends, and its tally.
    fn known_from(&self, replica: ReplicaId, first: u64) -> Option<(At, Tally)> {
        let held = |at| self.is_held(replica, at);
        let mut at = self.blocks.find(&self.runs, first, held)?;
        let mut tally = Tally::default();
        loop {
            let run = &self.runs[at.run];
            let depth = run.holders.depth(replica, run.len());
            tally.add(Tally::of(run.span.pieces(at.offset, depth)));
            let next = |child: &RunId| {
                self.is_held(
                    replica,
                    At {
                        run: *child,
                        offset: 0,
                    },
                )
            };
            at.offset = depth - 1;
            match self.children(at.run).find(next) {
                Some(run) if depth == self.runs[at.run].len() => at = At { run, offset: 0 },
                _ => return Some((at, tally)),
            }
        }
    }
}

/// Whether a tick comes after another one; they wrap around.
fn is_later(tick: Tick, than: Tick) -> bool {
    tick.wrapping_sub(than).cast_signed() > 0
}
