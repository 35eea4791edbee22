//! Who holds how much of a run.

use super::replica_set::{ReplicaId, ReplicaSet};

/// Every replica holds a prefix of the run, possibly none of it: it is in `whole`, in `partial`, or in neither.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders {
    /// Who holds all of it.
    pub whole: ReplicaSet,
    /// Who holds how many of its first blocks, more than none and fewer than all; sorted by replica.
    pub partial: Vec<(ReplicaId, u32)>,
}

impl Holders {
    /// One replica that holds all.
    pub fn of(replica: ReplicaId) -> Self {
        Self {
            whole: ReplicaSet::of(replica),
            partial: Vec::new(),
        }
    }

    fn find(&self, replica: ReplicaId) -> Result<usize, usize> {
        self.partial
            .binary_search_by_key(&replica, |&(holder, _)| holder)
    }

    /// How many of the first of `len` blocks the replica holds.
    pub fn depth(&self, replica: ReplicaId, len: usize) -> usize {
        if self.whole.contains(replica) {
            return len;
        }
        self.find(replica)
            .map_or(0, |index| self.partial[index].1 as usize)
    }

    /// Makes the replica hold exactly the first `depth` of `len` blocks.
    pub fn set_depth(&mut self, replica: ReplicaId, depth: usize, len: usize) {
        let found = self.find(replica);
        if depth == 0 || depth == len {
            if let Ok(index) = found {
                self.partial.remove(index);
            }
        } else {
            match found {
                Ok(index) => self.partial[index].1 = depth as u32,
                Err(index) => self.partial.insert(index, (replica, depth as u32)),
            }
        }
        if depth == len {
            self.whole.insert(replica);
        } else {
            self.whole.remove(replica);
        }
    }

    /// Before blocks are appended to `len` for `replica`, a whole holder: the other ones stay behind.
    pub fn leave_others_behind(&mut self, replica: ReplicaId, len: usize) {
        if self.whole.is_exactly(replica) {
            return;
        }
        let others = self.whole.split_off_outside(&ReplicaSet::of(replica));
        self.partial
            .extend(others.iter().map(|other| (other, len as u32)));
        self.partial.sort_unstable();
    }

    /// How many of the first of `len` blocks anybody holds.
    pub fn held(&self, len: usize) -> usize {
        if !self.whole.is_empty() {
            return len;
        }
        let depths = self.partial.iter().map(|&(_, depth)| depth as usize);
        depths.max().unwrap_or(0)
    }

    /// Whether each holder of any block is in `set`.
    pub fn are_within(&self, set: &ReplicaSet) -> bool {
        self.whole.is_subset(set)
            && self
                .partial
                .iter()
                .all(|&(replica, _)| set.contains(replica))
    }

    /// Cuts at `at`, strictly inside: keeps the holders of the rest and returns those of the front.
    pub fn split_front(&mut self, at: usize) -> Self {
        let depth = at as u32;
        let mut front = Self {
            whole: self.whole.clone(),
            partial: Vec::new(),
        };
        self.partial.retain_mut(|(replica, held)| {
            if *held >= depth {
                front.whole.insert(*replica);
            } else {
                front.partial.push((*replica, *held));
            }
            let goes_on = *held > depth;
            *held = held.saturating_sub(depth);
            goes_on
        });
        front
    }

    /// Puts a run of `len` blocks before this one, all of whose holders hold the whole of that one.
    pub fn join_front(&mut self, mut front: Self, len: usize) {
        let stay = front.whole.split_off_outside(&self.whole);
        for (_, depth) in &mut self.partial {
            *depth += len as u32;
        }
        let here: Vec<_> = stay
            .iter()
            .filter(|&replica| self.find(replica).is_err())
            .map(|replica| (replica, len as u32))
            .collect();
        self.partial.append(&mut front.partial);
        self.partial.extend(here);
        self.partial.sort_unstable();
    }

    /// The run now has only the first `len` of its blocks.
    pub fn truncate(&mut self, len: usize) {
        let whole = &mut self.whole;
        self.partial.retain(|&(replica, depth)| {
            let all = depth as usize >= len;
            if all {
                whole.insert(replica);
            }
            !all
        });
    }

    /// Replicas that hold any of it.
    pub fn len(&self) -> u32 {
        self.whole.len() + self.partial.len() as u32
    }

    /// Bytes beyond its own size.
    pub fn size_bytes(&self) -> usize {
        self.whole.size_bytes() + self.partial.capacity() * size_of::<(ReplicaId, u32)>()
    }
}
