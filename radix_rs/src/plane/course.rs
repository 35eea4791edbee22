//! How one request goes, for its metrics and its trace.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderValue;

use super::answer::Seen;
use super::counters::ModelCounters;
use super::traces::Trace;

/// In the metadata of every answer, and of a refusal once the request was read.
pub(crate) const REQUEST_ID: &str = "prefixlb-request-id";

/// How one request goes, for its metrics and its trace.
pub(crate) struct Course {
    began: Instant,
    pub counters: Arc<ModelCounters>,
    pub trace: Trace,
    /// As metadata of its answer; None before it is known, and if it cannot be any.
    pub request_id: Option<HeaderValue>,
    last_message: Option<Instant>,
}

impl Course {
    /// It begins now; its model is not known yet.
    pub fn new(unnamed: Arc<ModelCounters>, trace: Trace) -> Self {
        Self {
            began: Instant::now(),
            counters: unnamed,
            trace,
            request_id: None,
            last_message: None,
        }
    }

    /// The request is read, and has this id.
    pub fn is_called(&mut self, id: &str) {
        self.trace.read(id);
        if id.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.request_id = HeaderValue::from_str(id).ok();
        }
        if let Some(value) = &mut self.request_id {
            // No other answer has it: it shall push nothing out of the table by which headers are packed.
            value.set_sensitive(true);
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
