//! Where runs are cut and joined, so that the tree's form depends on its content alone.

use super::Index;
use super::run::{Run, RunId};

impl Index {
    /// Hangs `child`, which has no parent, below `parent`.
    pub(super) fn link(&mut self, parent: RunId, child: RunId) {
        self.runs[child].parent = Some(parent);
        self.runs[parent].children += 1;
        self.runs[parent].child_xor ^= child;
    }

    /// Cuts a run strictly inside. Returns the front, a new run; the rest keeps its number.
    pub(super) fn split(&mut self, id: RunId, at: usize) -> RunId {
        let front = self.runs.add(Run::default());
        let run = &mut self.runs[id];
        let first = run.span.first();
        let head = Run {
            span: self.blocks.split_front(&mut run.span, at, id, front),
            holders: run.holders.split_front(at),
            parent: run.parent.replace(front),
            orphan: std::mem::take(&mut run.orphan),
            children: 1,
            child_xor: id,
        };
        let rest_first = run.span.first();
        if let Some(parent) = head.parent {
            self.runs[parent].child_xor ^= id ^ front;
        }
        self.runs[front] = head;
        self.starts.pass(first, id, front);
        self.starts.add(rest_first, id);
        front
    }

    /// Joins a run with its only child, whose holders all hold the whole of it. The child's number remains.
    fn join(&mut self, parent: RunId, child: RunId) {
        let front = self.runs.take(parent);
        let run = &mut self.runs[child];
        self.starts.remove(run.span.first(), child);
        self.starts.pass(front.span.first(), parent, child);
        run.holders.join_front(front.holders, front.span.len);
        run.parent = front.parent;
        run.orphan = front.orphan;
        self.blocks.join_front(front.span, &mut run.span, child);
        if let Some(above) = front.parent {
            self.runs[above].child_xor ^= parent ^ child;
        }
    }

    /// The only child of a run, if it can be joined.
    pub(super) fn joinable_child(&self, id: RunId) -> Option<RunId> {
        let run = &self.runs[id];
        if run.children != 1 {
            return None;
        }
        let child = run.child_xor;
        let holders = &self.runs[child].holders;
        holders.are_within(&run.holders.whole).then_some(child)
    }

    /// Restores the form around a run whose holders changed: forgets blocks nobody holds or needs, up the
    /// tree, then joins what nothing separates any more.
    pub(super) fn settle(&mut self, mut id: RunId) {
        while self.runs[id].children == 0 {
            let run = &mut self.runs[id];
            let held = run.holders.held(run.span.len);
            if held == run.span.len {
                break;
            }
            if held > 0 {
                self.blocks.truncate(&mut run.span, held);
                run.holders.truncate(held);
                break;
            }
            let Some(parent) = self.take(id) else { return };
            id = parent;
        }
        while let Some(parent) = self.runs[id].parent
            && self.joinable_child(parent).is_some()
        {
            self.join(parent, id);
        }
        while let Some(child) = self.joinable_child(id) {
            self.join(id, child);
            id = child;
        }
    }

    /// Forgets a run without children; its parent.
    fn take(&mut self, id: RunId) -> Option<RunId> {
        let mut run = self.runs.take(id);
        self.starts.remove(run.span.first(), id);
        self.blocks.truncate(&mut run.span, 0);
        self.orphans -= usize::from(run.orphan);
        let parent = run.parent?;
        self.runs[parent].children -= 1;
        self.runs[parent].child_xor ^= id;
        Some(parent)
    }

    /// Hangs a run whose parent was not known below `parent`, unless that one descends from it.
    pub(super) fn adopt(&mut self, id: RunId, parent: u64) {
        let Some(at) = self.find(parent) else {
            return;
        };
        let mut ancestor = Some(at.run);
        while let Some(run) = ancestor {
            if run == id {
                return;
            }
            ancestor = self.runs[run].parent;
        }
        let above = if at.offset + 1 < self.runs[at.run].len() {
            self.split(at.run, at.offset + 1)
        } else {
            at.run
        };
        self.orphans -= usize::from(std::mem::take(&mut self.runs[id].orphan));
        self.link(above, id);
    }
}
