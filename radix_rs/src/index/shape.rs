//! Where runs are cut and joined, so that the tree's form depends on its content alone.

use super::Index;
use super::block_map::{At, RunId};
use crate::chain::NO_PARENT;

impl Index {
    /// The run that ends right before `id`, if known.
    fn parent_run(&self, id: RunId) -> Option<RunId> {
        match self.runs[id].parent {
            NO_PARENT => None,
            parent => self.blocks.find(parent).map(|at| at.run),
        }
    }

    /// Counts the run that begins with `first` as a child of the run that ends with `parent`.
    pub(super) fn link(&mut self, parent: u64, first: u64) {
        if let Some(at) = self.blocks.find(parent) {
            self.runs[at.run].children += 1;
            self.runs[at.run].child_xor ^= first;
        }
    }

    /// Cuts a run strictly inside. The shorter part moves to a new number. Returns (front, rest).
    pub(super) fn split(&mut self, id: RunId, at: usize) -> (RunId, RunId) {
        let rest = self.runs[id].split_off(at);
        if rest.len() <= self.runs[id].len() {
            let rest = self.runs.add(rest);
            self.place(rest, 0);
            (id, rest)
        } else {
            let front = std::mem::replace(&mut self.runs[id], rest);
            let front = self.runs.add(front);
            self.place(front, 0);
            (front, id)
        }
    }

    /// Points the map at the blocks of a run, from an offset on.
    fn place(&mut self, id: RunId, from: usize) {
        let run = &self.runs[id];
        for (position, &hash) in (run.start..).zip(&run.hashes).skip(from) {
            self.blocks.put(hash, At { run: id, position });
        }
    }

    /// Joins a run with its only child, whose holders all hold the whole of it. The shorter one moves.
    fn join(&mut self, parent: RunId, child: RunId) -> RunId {
        let (front, rest) = (&self.runs[parent], &self.runs[child]);
        let continuous = rest.start == front.start + front.len() as u32;
        let len = front.len();
        if continuous && rest.len() > len {
            let mut joined = self.runs.take(parent);
            joined.absorb(&self.runs[child]);
            for (position, &hash) in (joined.start..).zip(&joined.hashes[..len]) {
                let at = At {
                    run: child,
                    position,
                };
                self.blocks.put(hash, at);
            }
            self.runs[child] = joined;
            child
        } else {
            let rest = self.runs.take(child);
            self.runs[parent].absorb(&rest);
            self.place(parent, len);
            parent
        }
    }

    /// The only child of a run, if it can be joined.
    pub(super) fn joinable_child(&self, id: RunId) -> Option<RunId> {
        let run = &self.runs[id];
        if run.children != 1 {
            return None;
        }
        let child = self.blocks.find(run.child_xor)?.run;
        self.runs[child].held_within(&run.whole).then_some(child)
    }

    /// Restores the form around a run whose holders changed: forgets blocks nobody holds or needs, up the
    /// tree, then joins what nothing separates any more.
    ///
    /// One join upwards and one downwards are enough: a joined run has the parent's holders at its
    /// start and the child's at its end, so nothing changes for its neighbours.
    pub(super) fn settle(&mut self, mut id: RunId) {
        while self.runs[id].children == 0 {
            let held = self.runs[id].held();
            if held == self.runs[id].len() {
                break;
            }
            let first = self.runs[id].hashes[0];
            let parent = self.parent_run(id);
            for hash in self.runs[id].truncate(held) {
                self.blocks.forget(hash);
            }
            if held > 0 {
                break;
            }
            self.runs.take(id);
            let Some(parent) = parent else { return };
            self.runs[parent].children -= 1;
            self.runs[parent].child_xor ^= first;
            id = parent;
        }
        if let Some(parent) = self.parent_run(id)
            && self.joinable_child(parent).is_some()
        {
            id = self.join(parent, id);
        }
        if let Some(child) = self.joinable_child(id) {
            self.join(id, child);
        }
    }

    /// Hangs a run whose parent was not known after the block `parent`, unless that block descends from it.
    pub(super) fn adopt(&mut self, id: RunId, parent: u64) {
        let Some(at) = self.blocks.find(parent) else {
            return;
        };
        let mut ancestor = Some(at.run);
        while let Some(run) = ancestor {
            if run == id {
                return;
            }
            ancestor = self.parent_run(run);
        }
        let offset = (at.position - self.runs[at.run].start) as usize;
        if offset + 1 < self.runs[at.run].len() {
            self.split(at.run, offset + 1);
        }
        self.runs[id].parent = parent;
        self.link(parent, self.runs[id].hashes[0]);
    }
}
