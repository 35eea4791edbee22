//! Where runs are cut and joined, so that the tree's form depends on its content alone.

use super::Index;
use super::run::{Run, RunId};

impl Index {
    /// Hangs `child`, which has no parent, below `parent`.
    pub(super) fn link(&mut self, parent: RunId, child: RunId) {
        let above = &mut self.runs[parent];
        above.children += 1;
        let sibling = above.first_child.replace(child);
        let below = &mut self.runs[child];
        below.parent = Some(parent);
        below.after = sibling;
        if let Some(sibling) = sibling {
            self.runs[sibling].before = Some(child);
        }
    }

    /// The children of a run.
    pub(super) fn children(&self, id: RunId) -> impl Iterator<Item = RunId> + '_ {
        std::iter::successors(self.runs[id].first_child, |&child| self.runs[child].after)
    }

    /// Lets `new` take the place of `old`, a child of `parent` with these neighbours.
    fn replace_child(&mut self, old: RunId, new: RunId) {
        let Run {
            parent,
            before,
            after,
            ..
        } = self.runs[old];
        match (before, parent) {
            (Some(sibling), _) => self.runs[sibling].after = Some(new),
            (None, Some(parent)) => self.runs[parent].first_child = Some(new),
            (None, None) => {}
        }
        if let Some(sibling) = after {
            self.runs[sibling].before = Some(new);
        }
        let run = &mut self.runs[new];
        (run.parent, run.before, run.after) = (parent, before, after);
    }

    /// Cuts a run strictly inside. Returns the front, a new run; the rest keeps its number.
    pub(super) fn split(&mut self, id: RunId, at: usize) -> RunId {
        let front = self.runs.add(Run::default());
        let run = &mut self.runs[id];
        let first = run.span.first();
        let used = run.last_used();
        let head = Run {
            span: self.blocks.split_front(&mut run.span, at, id, front),
            holders: run.holders.split_front(at),
            orphan: std::mem::take(&mut run.orphan),
            children: 1,
            first_child: Some(id),
            ..Run::default()
        };
        head.touch(used);
        let rest_first = run.span.first();
        self.runs[front] = head;
        self.replace_child(id, front);
        let run = &mut self.runs[id];
        (run.parent, run.before, run.after) = (Some(front), None, None);
        self.starts.pass(first, id, front);
        self.starts.add(rest_first, id);
        self.count_bytes(front);
        self.count_bytes(id);
        front
    }

    /// Joins a run with its only child, whose holders all hold the whole of it. The child's number remains.
    fn join(&mut self, parent: RunId, child: RunId) {
        self.replace_child(parent, child);
        let front = self.take_run(parent);
        let run = &mut self.runs[child];
        self.starts.remove(run.span.first(), child);
        self.starts.pass(front.span.first(), parent, child);
        run.holders.join_front(front.holders, front.span.len);
        run.orphan = front.orphan;
        self.blocks.join_front(front.span, &mut run.span, child);
        self.count_bytes(child);
    }

    /// The only child of a run, if it can be joined.
    pub(super) fn joinable_child(&self, id: RunId) -> Option<RunId> {
        let run = &self.runs[id];
        if run.children != 1 {
            return None;
        }
        let child = run.first_child?;
        let holders = &self.runs[child].holders;
        holders.are_within(&run.holders.whole).then_some(child)
    }

    /// Restores the form around a run whose holders changed: forgets blocks nobody holds or needs, up the
    /// tree, then joins what nothing separates any more.
    pub(super) fn settle(&mut self, id: RunId) {
        let mut next = Some(id);
        while let Some(id) = next {
            next = self.settle_step(id);
        }
    }

    /// Changes one run at most: which one comes next.
    pub(super) fn settle_step(&mut self, id: RunId) -> Option<RunId> {
        let run = &mut self.runs[id];
        if run.children == 0 {
            let held = run.holders.held(run.span.len);
            if held == 0 {
                return self.take(id);
            }
            if held < run.span.len {
                self.blocks.truncate(&mut run.span, held);
                run.holders.truncate(held);
            }
        }
        if let Some((parent, child)) = self.next_join(id) {
            if self.looked_at.take() != Some(id) {
                self.look_at_join(parent, child);
                self.looked_at = Some(id);
                return Some(id);
            }
            self.join(parent, child);
            return Some(child);
        }
        self.count_bytes(id);
        None
    }

    /// A run and its only child, one of which is `id`, that can be joined.
    fn next_join(&self, id: RunId) -> Option<(RunId, RunId)> {
        let pair = |parent| Some((parent, self.joinable_child(parent)?));
        self.runs[id].parent.and_then(pair).or_else(|| pair(id))
    }

    /// Reads what a join will: what has come from memory by then makes the step that joins short.
    fn look_at_join(&self, parent: RunId, child: RunId) {
        let (front, rest) = (&self.runs[parent].span, &self.runs[child].span);
        let starts = [front, rest].map(|span| self.starts.find(span.first()));
        std::hint::black_box((starts, self.blocks.look_at_join(front, rest)));
    }

    /// Forgets a run without children; its parent.
    pub(super) fn take(&mut self, id: RunId) -> Option<RunId> {
        let Run {
            parent,
            before,
            after,
            ..
        } = self.runs[id];
        let mut run = self.take_run(id);
        self.starts.remove(run.span.first(), id);
        self.blocks.truncate(&mut run.span, 0);
        self.orphans -= usize::from(run.orphan);
        if let Some(sibling) = after {
            self.runs[sibling].before = before;
        }
        let parent = parent?;
        match before {
            Some(sibling) => self.runs[sibling].after = after,
            None => self.runs[parent].first_child = after,
        }
        self.runs[parent].children -= 1;
        self.ends_branch(parent, run.last_used());
        Some(parent)
    }

    fn take_run(&mut self, id: RunId) -> Run {
        self.queue.remove(&mut self.runs, id);
        let run = self.runs.take(id);
        self.run_heap_bytes -= run.counted_bytes;
        run
    }

    /// Counts what a run takes beyond its own size, after it has changed.
    pub(super) fn count_bytes(&mut self, id: RunId) {
        let run = &mut self.runs[id];
        let bytes = run.heap_bytes();
        self.run_heap_bytes = self.run_heap_bytes - run.counted_bytes + bytes;
        run.counted_bytes = bytes;
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
