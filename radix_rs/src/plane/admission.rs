//! How many requests the router takes at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use super::status::{Code, Refusal};

/// Counts what is in flight; above the bound nothing is taken.
#[derive(Debug)]
pub(crate) struct Admission {
    max: usize,
    inflight: AtomicUsize,
    taken: AtomicU64,
}

impl Admission {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            inflight: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// One more is in flight, until `leave`.
    pub fn enter(&self) -> Result<(), Refusal> {
        let one_more = |inflight| (inflight < self.max).then_some(inflight + 1);
        match self.inflight.fetch_update(SeqCst, SeqCst, one_more) {
            Ok(_) => {
                self.taken.fetch_add(1, SeqCst);
                Ok(())
            }
            Err(inflight) => Err(Refusal::new(
                Code::ResourceExhausted,
                format!("{inflight} requests are in flight, the most this router takes"),
            )),
        }
    }

    pub fn leave(&self) {
        self.inflight.fetch_sub(1, SeqCst);
    }

    pub fn inflight(&self) -> usize {
        self.inflight.load(SeqCst)
    }

    /// How many were ever taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(SeqCst)
    }
}

/// A request in flight until it is dropped.
pub(crate) struct Admitted<'a>(&'a Admission);

impl<'a> Admitted<'a> {
    pub fn new(admission: &'a Admission) -> Result<Self, Refusal> {
        admission.enter()?;
        Ok(Self(admission))
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
