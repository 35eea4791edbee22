//! The runs, by number.

use std::ops::{Index, IndexMut};

use super::run::{Run, RunId};

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

    /// The run of a number, if it lives.
    pub fn get(&self, id: RunId) -> Option<&Run> {
        self.runs.get(id as usize).filter(|run| run.is_alive())
    }

    pub fn len(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    /// The living runs.
    pub fn iter(&self) -> impl Iterator<Item = (RunId, &Run)> {
        (0..).zip(&self.runs).filter(|(_, run)| run.is_alive())
    }

    /// The living runs, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (RunId, &mut Run)> {
        let runs = (0..).zip(&mut self.runs);
        runs.filter(|(_, run)| run.is_alive())
    }

    /// Bytes of the slots and of what the living runs point to, chunks apart.
    pub fn size_bytes(&self) -> usize {
        let beyond = |(_, run): (_, &Run)| run.span.list_bytes() + run.holders.size_bytes();
        let beyond: usize = self.iter().map(beyond).sum();
        self.runs.capacity() * size_of::<Run>() + beyond
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
