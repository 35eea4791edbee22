//! What an event does to one replica's blocks. Set semantics: what is so already is left as it is.

use super::block_map::{At, RunId};
use super::run::Run;
use super::{Index, ReplicaId, ReplicaSet};
use crate::chain::NO_PARENT;

impl Index {
    /// The replica now holds `hashes`, the first of which follows `parent`. Returns how many it did not hold.
    ///
    /// Hashes must not be [`NO_PARENT`].
    pub fn store(&mut self, replica: ReplicaId, parent: u64, hashes: &[u64]) -> u64 {
        let before = self.tally(replica).count;
        let mut parent = parent;
        let mut rest = hashes;
        while let Some(&first) = rest.first() {
            let done = match self.blocks.find(first) {
                Some(at) => self.hold_known(replica, parent, at, rest),
                None => self.hold_new(replica, parent, rest),
            };
            parent = rest[done - 1];
            rest = &rest[done..];
        }
        self.tally(replica).count - before
    }

    /// The replica no longer holds `last` and the `count - 1` blocks before it. Returns how many it held.
    pub fn remove(&mut self, replica: ReplicaId, last: u64, count: u32) -> u64 {
        let before = self.tally(replica).count;
        let mut touched = std::mem::take(&mut self.touched);
        let (mut next, mut left) = (last, count as usize);
        while left > 0 && next != NO_PARENT {
            let Some(at) = self.blocks.find(next) else {
                break;
            };
            let run = &self.runs[at.run];
            let to = (at.position - run.start) as usize + 1;
            let from = to.saturating_sub(left);
            left -= to - from;
            next = run.parent;
            touched.push(run.hashes[0]);
            self.drop_range(replica, at.run, from, to);
        }
        // Only now: settling forgets blocks nobody holds, and with them the way up.
        for first in touched.drain(..) {
            if let Some(at) = self.blocks.find(first) {
                self.settle(at.run);
            }
        }
        self.touched = touched;
        before - self.tally(replica).count
    }

    /// The replica holds nothing. Returns how many blocks it held. Looks at every run.
    pub fn clear(&mut self, replica: ReplicaId) -> u64 {
        let held = std::mem::take(&mut self.tallies[replica as usize]).count;
        if held == 0 {
            return 0;
        }
        let mut touched = std::mem::take(&mut self.touched);
        for run in self.runs.iter_mut() {
            if run.depth(replica) > 0 {
                run.set_depth(replica, 0);
                touched.push(run.hashes[0]);
            }
        }
        for first in touched.drain(..) {
            if let Some(at) = self.blocks.find(first) {
                self.settle(at.run);
            }
        }
        self.touched = touched;
        held
    }

    /// Stores the leading `hashes` that lie in one known run, the first of them at `at`; how many.
    fn hold_known(&mut self, replica: ReplicaId, parent: u64, at: At, hashes: &[u64]) -> usize {
        let run = &self.runs[at.run];
        let from = (at.position - run.start) as usize;
        let known = &run.hashes[from..];
        let len = hashes.iter().zip(known).take_while(|(a, b)| a == b).count();
        if from == 0 && run.parent == NO_PARENT && parent != NO_PARENT {
            self.adopt(at.run, parent);
        }
        self.hold_range(replica, at.run, from, from + len);
        len
    }

    fn hold_range(&mut self, replica: ReplicaId, run: RunId, from: usize, to: usize) {
        let depth = self.runs[run].depth(replica);
        let (run, new, to) = if from > depth {
            // It holds `from` without the block before: the run must begin there.
            (self.split(run, from).1, 0, to - from)
        } else {
            (run, depth, to)
        };
        if to > new {
            self.tallies[replica as usize].add(&self.runs[run].hashes[new..to]);
            self.runs[run].set_depth(replica, to);
        }
        self.settle(run);
    }

    fn drop_range(&mut self, replica: ReplicaId, run: RunId, from: usize, to: usize) {
        let depth = self.runs[run].depth(replica);
        if from >= depth {
            return;
        }
        let (run, to) = if to < depth {
            // It keeps blocks that follow: they become a run of their own.
            (self.split(run, to).0, to)
        } else {
            (run, depth)
        };
        self.tallies[replica as usize].subtract(&self.runs[run].hashes[from..to]);
        self.runs[run].set_depth(replica, from);
    }

    /// Stores the leading `hashes` that nobody holds yet; how many.
    fn hold_new(&mut self, replica: ReplicaId, parent: u64, hashes: &[u64]) -> usize {
        let run = self.run_after(replica, parent, hashes[0]);
        let end = self.runs[run].start + self.runs[run].len() as u32;
        let len = (end..)
            .zip(hashes)
            .take_while(|&(position, &hash)| self.blocks.put_new(hash, At { run, position }))
            .count();
        self.runs[run].hashes.extend_from_slice(&hashes[..len]);
        self.tallies[replica as usize].add(&hashes[..len]);
        len
    }

    /// A run to append new blocks to that follow `parent`, the first of them `first`, and that `replica` alone
    /// will hold: the parent's own run if it ends there and the replica holds it, else a new one.
    fn run_after(&mut self, replica: ReplicaId, parent: u64, first: u64) -> RunId {
        let known = match parent {
            NO_PARENT => None,
            parent => self.blocks.find(parent),
        };
        let mut child = Run {
            whole: ReplicaSet::of(replica),
            ..Run::default()
        };
        let Some(at) = known else {
            return self.runs.add(child);
        };
        let run = &mut self.runs[at.run];
        let end = (at.position - run.start) as usize + 1;
        if end == run.len() && run.children == 0 && run.whole.contains(replica) {
            run.leave_others_behind(replica);
            return at.run;
        }
        if end < run.len() {
            self.split(at.run, end);
        }
        child.start = at.position + 1;
        child.parent = parent;
        self.link(parent, first);
        self.runs.add(child)
    }
}
