//! Seconds on the clock that the rest of the process reads.

use std::time::Instant;

/// Counts on from what its maker read on another monotonic clock, so that both say the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    began_s: f64,
}

impl Clock {
    /// `now_s`: what the other clock says now.
    pub fn new(now_s: f64) -> Self {
        Self {
            began: Instant::now(),
            began_s: now_s,
        }
    }

    pub fn now_s(&self) -> f64 {
        self.began_s + self.began.elapsed().as_secs_f64()
    }
}
