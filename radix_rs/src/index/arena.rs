//! The runs, by number.

use std::ops::{Index, IndexMut};

use super::run::{Run, RunId};

/// Runs in a segment; in tests so few that small trees have many.
const SEGMENT: usize = if cfg!(test) { 4 } else { 64 };

/// Grows by segments, so that no run is ever moved and growing never takes long. Slots of freed runs are used
/// again.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    segments: Vec<Box<[Run]>>,
    free: Vec<RunId>,
    len: usize,
}

impl Arena {
    pub fn add(&mut self, run: Run) -> RunId {
        if self.free.is_empty() {
            self.grow();
        }
        self.len += 1;
        let id = self.free.pop().unwrap_or_default();
        self[id] = run;
        id
    }

    #[cold]
    fn grow(&mut self) {
        let from = self.num_slots();
        let segment = (0..SEGMENT).map(|_| Run::default()).collect();
        self.segments.push(segment);
        self.free
            .extend((from..from + SEGMENT).rev().map(|id| id as RunId));
    }

    pub fn take(&mut self, id: RunId) -> Run {
        self.free.push(id);
        self.len -= 1;
        std::mem::take(&mut self[id])
    }

    /// The run of a number, if it lives.
    pub fn get(&self, id: RunId) -> Option<&Run> {
        let segment = self.segments.get(id as usize / SEGMENT)?;
        Some(&segment[id as usize % SEGMENT]).filter(|run| run.is_alive())
    }

    /// Living runs and free numbers.
    pub fn num_slots(&self) -> usize {
        self.segments.len() * SEGMENT
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The living runs.
    pub fn iter(&self) -> impl Iterator<Item = (RunId, &Run)> {
        let runs = self.segments.iter().flatten();
        (0..).zip(runs).filter(|(_, run)| run.is_alive())
    }

    /// Bytes of all slots.
    pub fn size_bytes(&self) -> usize {
        self.num_slots() * size_of::<Run>() + self.free.capacity() * size_of::<RunId>()
    }
}

impl Index<RunId> for Arena {
    type Output = Run;

    fn index(&self, id: RunId) -> &Run {
        &self.segments[id as usize / SEGMENT][id as usize % SEGMENT]
    }
}

impl IndexMut<RunId> for Arena {
    fn index_mut(&mut self, id: RunId) -> &mut Run {
        &mut self.segments[id as usize / SEGMENT][id as usize % SEGMENT]
    }
}
