//! The runs, by number.

use std::ops::{Index, IndexMut};

use super::block_map::RunId;
use super::run::Run;

/// Slots of freed runs are used again.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    runs: Vec<Run>,
    free: Vec<RunId>,
}

impl Arena {
    pub fn add(&mut self, run: Run) -> RunId {
        if let Some(id) = self.free.pop() {
            self.runs[id as usize] = run;
            return id;
        }
        self.runs.push(run);
        (self.runs.len() - 1) as RunId
    }

    pub fn take(&mut self, id: RunId) -> Run {
        self.free.push(id);
        std::mem::take(&mut self.runs[id as usize])
    }

    pub fn len(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    /// The living runs.
    pub fn iter(&self) -> impl Iterator<Item = (RunId, &Run)> {
        (0..).zip(&self.runs).filter(|(_, run)| run.len() > 0)
    }

    /// The living runs, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.runs.iter_mut().filter(|run| run.len() > 0)
    }

    /// Bytes of the slots; what the runs point to is not in it.
    pub fn size_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }
}

impl Index<RunId> for Arena {
    type Output = Run;

    fn index(&self, id: RunId) -> &Run {
        &self.runs[id as usize]
    }
}

impl IndexMut<RunId> for Arena {
    fn index_mut(&mut self, id: RunId) -> &mut Run {
        &mut self.runs[id as usize]
    }
}
