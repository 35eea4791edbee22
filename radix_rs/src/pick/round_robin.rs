//! Policy `round_robin`: whoever was picked longest ago.
//!
//! Kept for each replica rather than as one turning number, so that it stays even when replicas come, go or
//! serve different models.

use super::candidate::Candidate;
use crate::index::ReplicaId;

#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    picks: u64,
    /// By replica: number of the pick that was its last.
    last: Vec<u64>,
}

impl RoundRobin {
    pub fn choose(&self, candidates: &[Candidate]) -> Option<usize> {
        (0..candidates.len()).min_by_key(|&i| {
            let id = candidates[i].id as usize;
            self.last.get(id).copied().unwrap_or(0)
        })
    }

    pub fn picked(&mut self, id: ReplicaId) {
        let id = id as usize;
        if id >= self.last.len() {
            self.last.resize(id + 1, 0);
        }
        self.picks += 1;
        self.last[id] = self.picks;
    }
}
