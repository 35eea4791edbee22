//! How many requests may go elsewhere: a fleet that fails is not asked twice as much for it.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// In thousandths of a retry: what a request adds, and the most that is saved up.
const PER_REQUEST: i64 = 200;
const ONE: i64 = 1000;
const MOST: i64 = 200 * ONE;

/// Retries that are left; a fifth of the requests, and some hundred at once.
#[derive(Debug)]
pub(crate) struct RetryBudget(AtomicI64);

impl RetryBudget {
    pub fn new() -> Self {
        Self(AtomicI64::new(MOST))
    }

    /// A request came.
    pub fn add(&self) {
        if self.0.load(Relaxed) < MOST {
            self.0.fetch_add(PER_REQUEST, Relaxed);
        }
    }

    /// Whether one more may go elsewhere; it is counted then.
    pub fn take(&self) -> bool {
        let one_less = |left| (left >= ONE).then_some(left - ONE);
        self.0.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_comes_back_with_requests() {
        let budget = RetryBudget::new();
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 200);
        for _ in 0..10 {
            budget.add();
        }
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 2);
        for _ in 0..100_000 {
            budget.add();
        }
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 200);
    }
}
