//! What an event does to one replica's blocks. Set semantics: what is so already is left as it is.

use super::blocks::At;
use super::holders::Holders;
use super::run::{Run, RunId};
use super::span::Span;
use super::{Index, ReplicaId, Tally};
use crate::chain::NO_PARENT;
use crate::delta::Removed;

/// Where a replica last stored and last removed: where it goes on, mostly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    stored: At,
    removed: RunId,
}

/// Blocks that are removed, and runs that are looked at, in a step; in tests so few that it takes many.
const STEP: usize = if cfg!(test) { 2 } else { 32 };

impl Index {
    /// The replica now holds `hashes`, the first of which follows `parent`. Returns how many it did not hold.
    ///
    /// Hashes must not be [`NO_PARENT`].
    pub fn store(&mut self, replica: ReplicaId, parent: u64, hashes: &[u64]) -> u64 {
        let (mut parent, mut rest, mut stored) = (parent, hashes, 0);
        while !rest.is_empty() {
            let (new, done) = self.store_step(replica, parent, rest);
            stored += new;
            parent = rest[..done].last().copied().unwrap_or(parent);
            rest = &rest[done..];
        }
        self.tidy();
        stored
    }

    /// Has the block looked for that is stored after, unless it is at hand: true if that is to be done before, and
    /// before anything else.
    pub fn seek_parent(&mut self, replica: ReplicaId, parent: u64) -> bool {
        parent != NO_PARENT && self.seek(replica, self.recent[replica as usize].stored, parent)
    }

    /// The same for the first of them that come into one run, as a step after which an [`errand`](Self::errand) may be
    /// due: how many it did not hold, and how many are done. None are if a run was cut first: call it again.
    pub fn store_step(&mut self, replica: ReplicaId, parent: u64, hashes: &[u64]) -> (u64, usize) {
        self.clock = self.clock.wrapping_add(1);
        let all = hashes.len();
        if self.append_end(replica, parent, hashes) {
            self.forget_excess();
            return (all as u64, all);
        }
        let before = self.tally(replica).count;
        let stored = self.recent[replica as usize].stored;
        let parent_at = match parent {
            NO_PARENT => None,
            parent => self.find_end(replica, stored, parent),
        };
        if parent != NO_PARENT && self.follows_forgotten(replica, parent_at) {
            self.forgotten[replica as usize].add(Tally::of(std::iter::once(hashes)));
            if let Some(at) = parent_at {
                self.settle(at.run); // perhaps cut for these, before forgetting began
            }
            return (all as u64, all);
        }
        let Some(&first) = hashes.first() else {
            return (0, 0);
        };
        let next = self.find_next(parent_at, first);
        if next.is_none()
            && let Some(At { run, offset }) = parent_at
            && offset + 1 < self.runs[run].len()
        {
            let front = self.split(run, offset + 1);
            self.recent[replica as usize].stored = self.last_of(front);
            self.clock = self.clock.wrapping_sub(1); // nothing is stored yet
            return (0, 0);
        }
        let (at, done) = match next {
            Some(at) => self.hold_known(replica, parent, at, hashes),
            None => self.hold_new(replica, parent, parent_at, hashes),
        };
        self.recent[replica as usize].stored = at;
        self.runs[at.run].touch(self.clock);
        let stored = self.tally(replica).count - before;
        self.forget_excess();
        (stored, done)
    }

    /// The replica no longer holds `removed.last` and the `count - 1` blocks before it. Returns how many it held.
    pub fn remove(&mut self, replica: ReplicaId, removed: &Removed) -> u64 {
        let mut left = *removed;
        let mut gone = 0;
        let mut goes_on = left.count > 0;
        while goes_on {
            let (now, more) = self.remove_step(replica, &mut left);
            gone += now;
            goes_on = more;
        }
        self.tidy();
        gone
    }

    /// The same in steps, which have the last block looked for, drop up to [`STEP`] blocks, and settle a run each: how
    /// many it held of those that are dropped, and whether there is more to do, before anything else is done to the
    /// index but an [`errand`](Self::errand). Leaves what remains of the range.
    pub fn remove_step(&mut self, replica: ReplicaId, left: &mut Removed) -> (u64, bool) {
        if self.settle_touched() {
            let goes_on = left.count > 0 || !self.touched.is_empty();
            if !goes_on {
                self.forget_excess(); // what was cut takes more than it did
            }
            return (0, goes_on);
        }
        let recent = self.recent[replica as usize].removed;
        if let Some(run) = self.runs.get(recent)
            && let (len, count) = (run.len(), left.count as usize)
            && run.span.last == left.last
            && count < len.min(STEP)
            && self.drop_end(replica, recent, len - count, len)
        {
            left.count = 0;
            return (count as u64, false);
        }
        let guess = At {
            run: recent,
            offset: 0,
        };
        if left.last != NO_PARENT && self.seek(replica, guess, left.last) {
            return (0, true);
        }
        let before = self.tally(replica).count;
        let mut next = match left.last {
            NO_PARENT => None,
            last => self.find_end(replica, guess, last),
        };
        if self.follows_forgotten(replica, next) {
            let known = self.remove_forgotten(replica, left);
            next = known.map(|(end, _)| end);
            let tally = known.map_or_else(Tally::default, |(_, tally)| tally);
            left.count = tally.count as u32;
            left.digest = tally.digest;
        }
        let mut now = STEP.min(left.count as usize);
        left.count -= now as u32;
        while now > 0
            && let Some(At { run, offset }) = next
        {
            let to = offset + 1;
            let from = to.saturating_sub(now);
            now -= to - from;
            let Run { span, parent, .. } = &self.runs[run];
            if left.count > 0 {
                // What remains may be forgotten before its turn comes: its digest must be its own then.
                let done = Tally::of(span.pieces(from, to)).digest;
                left.digest = left.digest.wrapping_sub(done);
            }
            next = match from {
                0 => parent.map(|parent| self.last_of(parent)),
                _ => None,
            };
            left.last = match next {
                Some(At { run, .. }) => self.runs[run].span.last,
                None if from > 0 => span.get(from - 1),
                None => NO_PARENT,
            };
            self.recent[replica as usize].removed = run;
            if !self.drop_end(replica, run, from, to) {
                // Settled later: that forgets blocks nobody holds, and with them the way up.
                let touched = self.drop_range(replica, run, from, to);
                self.touched.push(touched);
            }
        }
        if now > 0 || left.last == NO_PARENT {
            left.count = 0;
        }
        self.touched.reverse(); // children first
        let goes_on = left.count > 0 || !self.touched.is_empty();
        (before - self.tally(replica).count, goes_on)
    }

    /// The replica holds nothing. Returns how many blocks it held. Looks at every run.
    pub fn clear(&mut self, replica: ReplicaId) -> u64 {
        let mut from = 0;
        let (held, mut goes_on) = self.clear_step(replica, &mut from);
        while goes_on {
            (_, goes_on) = self.clear_step(replica, &mut from);
        }
        self.tidy();
        held
    }

    /// The same in steps, of which the first is from 0 and each looks at a few runs: how many blocks it held, and
    /// whether there is more to do, before anything else is done to the index but an [`errand`](Self::errand).
    pub fn clear_step(&mut self, replica: ReplicaId, from: &mut usize) -> (u64, bool) {
        let mut held = 0;
        if *from == 0 {
            held = self.tally(replica).count;
            self.forgotten[replica as usize] = Tally::default();
            let known = std::mem::take(&mut self.known[replica as usize]);
            if known.count == 0 {
                return (held, false);
            }
        }
        // All are dropped before any is settled, or forgotten: that may join two runs, the holders of both.
        let to = self.runs.num_slots().min(*from + STEP);
        if *from < to {
            for id in *from as RunId..to as RunId {
                let Run { span, holders, .. } = &mut self.runs[id];
                if holders.depth(replica, span.len) > 0 {
                    holders.set_depth(replica, 0, span.len);
                    self.touched.push(id);
                }
            }
            *from = to;
            self.dropping = to < self.runs.num_slots();
            return (held, true);
        }
        self.settle_touched();
        let goes_on = !self.touched.is_empty();
        if !goes_on {
            self.forget_excess();
        }
        (held, goes_on)
    }

    /// Settles a run of those touched, as far as one step goes; false if there is none.
    fn settle_touched(&mut self) -> bool {
        let Some(run) = self.touched.pop() else {
            return false;
        };
        // Settling one may take in or forget others; those need no more.
        if self.runs[run].is_alive() {
            let next = self.settle_step(run);
            self.touched.extend(next);
        }
        true
    }

    fn last_of(&self, run: RunId) -> At {
        let offset = self.runs[run].len() - 1;
        At { run, offset }
    }

    /// Where a block stands that follows `parent`, if it is known. It is the next one there, or starts a run
    /// below it, or one whose parent was not known.
    fn find_next(&self, parent: Option<At>, hash: u64) -> Option<At> {
        if let Some(At { run, offset }) = parent {
            let Run { span, children, .. } = &self.runs[run];
            let offset = offset + 1;
            if offset < span.len && span.get(offset) == hash {
                return Some(At { run, offset });
            }
            if offset == span.len && *children == 0 && self.orphans == 0 {
                return None;
            }
        }
        let run = self.starts.find(hash)?;
        Some(At { run, offset: 0 })
    }

    /// Stores the leading `hashes` that lie in one known run, the first of them at `at`: the last, and how many.
    fn hold_known(
        &mut self,
        replica: ReplicaId,
        parent: u64,
        at: At,
        hashes: &[u64],
    ) -> (At, usize) {
        let At { run, offset: from } = at;
        let len = self.runs[run].span.same(from, hashes);
        if self.runs[run].orphan && parent != NO_PARENT && from == 0 {
            self.adopt(run, parent);
        }
        let at = self.hold_range(replica, run, from, from + len);
        (at, len)
    }

    /// The place of the last block.
    fn hold_range(&mut self, replica: ReplicaId, run: RunId, from: usize, to: usize) -> At {
        let depth = self.runs[run].holders.depth(replica, self.runs[run].len());
        let last = self.runs[run].span.get(to - 1);
        let (new, to) = if from > depth {
            // It holds `from` without the block before: the run must begin there.
            self.split(run, from);
            (0, to - from)
        } else {
            (depth, to)
        };
        if to > new {
            let Run { span, holders, .. } = &mut self.runs[run];
            self.known[replica as usize].add(Tally::of(span.pieces(new, to)));
            holders.set_depth(replica, to, span.len);
        }
        self.settle(run);
        self.settled(run, to - 1, last)
    }

    /// Appends to the run that the replica stored in last, which ends a branch and nobody else holds: the usual
    /// store, if it is one.
    fn append_end(&mut self, replica: ReplicaId, parent: u64, hashes: &[u64]) -> bool {
        let id = self.recent[replica as usize].stored.run;
        if self.orphans > 0 || self.runs.get(id).is_none() {
            return false;
        }
        let run = &mut self.runs[id];
        let usual = run.span.last == parent && run.children == 0 && run.is_only_of(replica);
        if usual {
            self.blocks.append(&mut run.span, id, hashes);
            self.known[replica as usize].add(Tally::of(std::iter::once(hashes)));
            run.touch(self.clock);
            self.count_bytes(id);
        }
        usual
    }

    /// Where a block stands that stood at `offset` before its run was settled, if it was.
    fn settled(&self, run: RunId, offset: usize, hash: u64) -> At {
        let span = &self.runs[run].span;
        if offset < span.len && span.get(offset) == hash {
            return At { run, offset };
        }
        // Joined: found by its hash.
        self.find(hash).unwrap_or(At { run, offset })
    }

    /// Drops the end of a run that ends a branch and that nobody else holds, the usual removal, if it is one.
    fn drop_end(&mut self, replica: ReplicaId, run: RunId, from: usize, to: usize) -> bool {
        let Run { span, children, .. } = &self.runs[run];
        let is_end = from > 0 && to == span.len && *children == 0;
        let usual = is_end && self.runs[run].is_only_of(replica);
        if usual {
            let span = &mut self.runs[run].span;
            self.known[replica as usize].subtract(Tally::of(span.pieces(from, to)));
            self.blocks.truncate(span, from);
            self.count_bytes(run);
        }
        usual
    }

    /// The run that begins with what is dropped or before it.
    fn drop_range(&mut self, replica: ReplicaId, run: RunId, from: usize, to: usize) -> RunId {
        let depth = self.runs[run].holders.depth(replica, self.runs[run].len());
        if from >= depth {
            return run;
        }
        let (run, to) = if to < depth {
            // It keeps blocks that follow: they become a run of their own.
            (self.split(run, to), to)
        } else {
            (run, depth)
        };
        let Run { span, holders, .. } = &mut self.runs[run];
        self.known[replica as usize].subtract(Tally::of(span.pieces(from, to)));
        holders.set_depth(replica, from, span.len);
        run
    }

    /// Stores the leading `hashes` that are not known: where the last of them stands, and how many.
    fn hold_new(
        &mut self,
        replica: ReplicaId,
        parent: u64,
        parent_at: Option<At>,
        hashes: &[u64],
    ) -> (At, usize) {
        let run = self.run_after(replica, parent, parent_at);
        // Only a block whose parent was not known can follow one that is new.
        let known = |hash: &u64| self.starts.find(*hash).is_some();
        let len = match self.orphans {
            0 => hashes.len(),
            _ => 1 + hashes[1..].iter().take_while(|hash| !known(hash)).count(),
        };
        let hashes = &hashes[..len];
        let span = &mut self.runs[run].span;
        let is_new = span.len == 0;
        self.blocks.append(span, run, hashes);
        self.known[replica as usize].add(Tally::of(std::iter::once(hashes)));
        if is_new {
            self.starts.add(hashes[0], run);
        }
        self.count_bytes(run);
        (self.last_of(run), len)
    }

    /// A run to append new blocks to that follow `parent`, which ends its run, and that `replica` alone will hold: the
    /// parent's own run if that ends a branch and the replica holds it, else a new one.
    fn run_after(&mut self, replica: ReplicaId, parent: u64, parent_at: Option<At>) -> RunId {
        let Some(At { run: id, .. }) = parent_at else {
            let orphan = parent != NO_PARENT;
            self.orphans += usize::from(orphan);
            return self.add_run(Run {
                holders: Holders::of(replica),
                orphan,
                ..Run::default()
            });
        };
        let run = &mut self.runs[id];
        let len = run.len();
        if run.children == 0 && run.holders.whole.contains(replica) {
            run.holders.leave_others_behind(replica, len);
            return id;
        }
        let child = self.add_run(Run {
            span: Span::at(self.runs[id].span.end()),
            holders: Holders::of(replica),
            ..Run::default()
        });
        self.link(id, child);
        child
    }

    /// A run that ends a branch.
    fn add_run(&mut self, run: Run) -> RunId {
        let id = self.runs.add(run);
        self.runs[id].touch(self.clock);
        self.queue.push(&mut self.runs, id, self.clock);
        id
    }
}
