//! How one request goes, for its metrics.

use std::sync::Arc;
use std::time::Instant;

use super::answer::Seen;
use super::counters::ModelCounters;

/// How one request goes, for its metrics.
pub(crate) struct Course {
    began: Instant,
    pub counters: Arc<ModelCounters>,
    last_message: Option<Instant>,
}

impl Course {
    /// It begins now; its model is not known yet.
    pub fn new(unnamed: Arc<ModelCounters>) -> Self {
        Self {
            began: Instant::now(),
            counters: unnamed,
            last_message: None,
        }
    }

    /// Messages came.
    pub fn saw(&mut self, seen: Seen) {
        if seen.messages == 0 {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.last_message {
            let mut gap_s = (now - last).as_secs_f64();
            for _ in 0..seen.token_messages {
                self.counters.inter_token.observe(gap_s);
                gap_s = 0.0;
            }
        } else {
            self.counters
                .first_token
                .observe((now - self.began).as_secs_f64());
            for _ in 0..seen.token_messages {
                self.counters.inter_token.observe(0.0);
            }
        }
        self.last_message = Some(now);
    }
}
