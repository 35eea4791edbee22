//! One edge of the tree: a run of blocks in chain order, and who holds how much of it.

use super::replica_set::{ReplicaId, ReplicaSet};

/// A run of blocks without a branch inside.
///
/// Every replica holds a prefix of the run, possibly none of it: it is in `whole`, in `partial`, or in
/// neither. Links to other runs are block hashes, which stay true when runs are split, merged or moved.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Never empty while the run lives.
    pub hashes: Vec<u64>,
    /// Position of `hashes[0]`; a block's position minus this is its offset here.
    pub start: u32,
    /// Hash of the block before `hashes[0]`; `NO_PARENT` at the start of a prompt, or when it is not known.
    pub parent: u64,
    /// Runs whose parent is the last block of this one.
    pub children: u32,
    /// Exclusive or of the first hashes of those runs: names the only child when there is one.
    pub child_xor: u64,
    /// Who holds all of it.
    pub whole: ReplicaSet,
    /// Who holds how many of its first blocks, more than none and fewer than all; sorted by replica.
    pub partial: Vec<(ReplicaId, u32)>,
}

impl Run {
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn last(&self) -> u64 {
        self.hashes[self.len() - 1]
    }

    /// How many of its first blocks the replica holds.
    pub fn depth(&self, replica: ReplicaId) -> usize {
        if self.whole.contains(replica) {
            return self.len();
        }
        self.find_partial(replica)
            .map_or(0, |index| self.partial[index].1 as usize)
    }

    fn find_partial(&self, replica: ReplicaId) -> Result<usize, usize> {
        self.partial
            .binary_search_by_key(&replica, |&(holder, _)| holder)
    }

    /// Makes the replica hold exactly the first `depth` blocks.
    pub fn set_depth(&mut self, replica: ReplicaId, depth: usize) {
        let found = self.find_partial(replica);
        if depth == 0 || depth == self.len() {
            if let Ok(index) = found {
                self.partial.remove(index);
            }
        } else {
            match found {
                Ok(index) => self.partial[index].1 = depth as u32,
                Err(index) => self.partial.insert(index, (replica, depth as u32)),
            }
        }
        if depth == self.len() {
            self.whole.insert(replica);
        } else {
            self.whole.remove(replica);
        }
    }

    /// Before blocks are appended for `replica`, a whole holder: the other ones stay behind.
    pub fn leave_others_behind(&mut self, replica: ReplicaId) {
        let others = self.whole.split_off_outside(&ReplicaSet::of(replica));
        let len = self.len() as u32;
        if !others.is_empty() {
            self.partial.extend(others.iter().map(|other| (other, len)));
            self.partial.sort_unstable();
        }
    }

    /// Blocks that anybody holds, counted from the start.
    pub fn held(&self) -> usize {
        if !self.whole.is_empty() {
            return self.len();
        }
        self.partial
            .iter()
            .map(|&(_, depth)| depth as usize)
            .max()
            .unwrap_or(0)
    }

    /// Whether each holder of any of its blocks is in `set`.
    pub fn held_within(&self, set: &ReplicaSet) -> bool {
        self.whole.is_subset(set)
            && self
                .partial
                .iter()
                .all(|&(replica, _)| set.contains(replica))
    }

    /// Cuts the run at `at`, strictly inside, and returns the rest as a run of its own.
    pub fn split_off(&mut self, at: usize) -> Self {
        let depth = at as u32;
        let mut tail = Self {
            hashes: self.hashes.split_off(at),
            start: self.start + depth,
            parent: self.hashes[at - 1],
            children: self.children,
            child_xor: self.child_xor,
            whole: self.whole.clone(),
            partial: Vec::new(),
        };
        self.hashes.shrink_to_fit();
        self.children = 1;
        self.child_xor = tail.hashes[0];
        let whole = &mut self.whole;
        self.partial.retain(|&(replica, held)| {
            if held >= depth {
                whole.insert(replica);
            }
            if held > depth {
                tail.partial.push((replica, held - depth));
            }
            held < depth
        });
        tail
    }

    /// Appends its only child, all of whose holders hold the whole of this run.
    pub fn absorb(&mut self, child: &Self) {
        let len = self.len() as u32;
        self.hashes.extend_from_slice(&child.hashes);
        self.children = child.children;
        self.child_xor = child.child_xor;
        let stay = self.whole.split_off_outside(&child.whole);
        let deeper = child.partial.iter().map(|&(r, depth)| (r, len + depth));
        let deeper: Vec<_> = deeper.collect();
        let here = stay
            .iter()
            .filter(|&r| child.find_partial(r).is_err())
            .map(|r| (r, len));
        self.partial.extend(here.chain(deeper));
        self.partial.sort_unstable();
    }

    /// Forgets the blocks from `held` on, which nobody holds, and returns them.
    pub fn truncate(&mut self, held: usize) -> Vec<u64> {
        let gone = self.hashes.split_off(held);
        self.hashes.shrink_to(held * 2);
        let whole = &mut self.whole;
        self.partial.retain(|&(replica, depth)| {
            let all = depth as usize == held;
            if all {
                whole.insert(replica);
            }
            !all
        });
        gone
    }
}
