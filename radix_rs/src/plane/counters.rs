//! What the plane counts, for the metrics page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::histogram::Histogram;
use super::status::{CODES, Code};
use crate::pick::Reason;

/// Of one model, and of requests that named none that is served.
#[derive(Debug)]
pub(crate) struct ModelCounters {
    ended: [AtomicU64; CODES.len()],
    pub first_token: Histogram,
    pub inter_token: Histogram,
}

impl ModelCounters {
    pub fn ended(&self, code: Code) {
        self.ended[code as usize].fetch_add(1, Relaxed);
    }
}

/// Of one model, as the page shows it.
#[derive(Debug)]
pub struct ModelReading {
    /// Its id.
    pub model: String,
    /// Requests that ended, by the name of their code; none that is 0.
    pub ended: Vec<(&'static str, u64)>,
    /// Counts of the buckets, and the sum in seconds.
    pub first_token: (Vec<u64>, f64),
    /// The same.
    pub inter_token: (Vec<u64>, f64),
}

/// Upper bounds of the buckets, in seconds.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Of the time to the first message.
    pub first_token_s: Vec<f64>,
    /// Of the time between two messages.
    pub inter_token_s: Vec<f64>,
}

#[derive(Debug)]
pub(crate) struct Counters {
    buckets: Buckets,
    models: Mutex<BTreeMap<String, Arc<ModelCounters>>>,
    picks: [AtomicU64; Reason::ALL.len()],
    pub retries: AtomicU64,
}

impl Counters {
    pub fn new(buckets: Buckets) -> Self {
        Self {
            buckets,
            models: Mutex::default(),
            picks: Default::default(),
            retries: AtomicU64::new(0),
        }
    }

    /// Those of a model; kept for as long as the process lives.
    pub fn model(&self, model: &str) -> Arc<ModelCounters> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = models.get(model) {
            return known.clone();
        }
        let new = Arc::new(ModelCounters {
            ended: Default::default(),
            first_token: Histogram::new(&self.buckets.first_token_s),
            inter_token: Histogram::new(&self.buckets.inter_token_s),
        });
        models.insert(model.to_owned(), new.clone());
        new
    }

    pub fn picked(&self, reason: Reason) {
        self.picks[reason as usize].fetch_add(1, Relaxed);
    }

    /// Picks by the name of their reason; none that is 0.
    pub fn picks(&self) -> Vec<(&'static str, u64)> {
        nonzero(Reason::ALL.map(Reason::name), &self.picks)
    }

    pub fn models(&self) -> Vec<ModelReading> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models
            .iter()
            .map(|(model, counters)| ModelReading {
                model: model.clone(),
                ended: nonzero(CODES.map(|(_, name)| name), &counters.ended),
                first_token: counters.first_token.read(),
                inter_token: counters.inter_token.read(),
            })
            .collect()
    }
}

fn nonzero<const N: usize>(
    names: [&'static str; N],
    counts: &[AtomicU64; N],
) -> Vec<(&'static str, u64)> {
    let counts = counts.iter().map(|count| count.load(Relaxed));
    names
        .into_iter()
        .zip(counts)
        .filter(|(_, n)| *n > 0)
        .collect()
}
