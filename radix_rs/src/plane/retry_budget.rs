//! How many requests may go elsewhere: a fleet that fails is not asked twice as much for it.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// In thousandths of a retry: one, and the most that is saved up.
const ONE: i64 = 1000;
const MOST: i64 = 200 * ONE;

/// Retries that are left: a part of the requests, and some hundred at once; none, if that part is 0.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    left: AtomicI64,
    /// What a request adds.
    share: AtomicI64,
}

impl RetryBudget {
    /// `share`: of the requests, from 0 to 1.
    pub fn new(share: f64) -> Self {
        let budget = Self {
            left: AtomicI64::new(MOST),
            share: AtomicI64::new(0),
        };
        budget.set_share(share);
        budget
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "at most a thousand"
    )]
    pub fn set_share(&self, share: f64) {
        let share = (share.clamp(0.0, 1.0) * ONE as f64).round();
        self.share.store(share as i64, Relaxed);
    }

    /// A request came.
    pub fn add(&self) {
        if self.left.load(Relaxed) < MOST {
            self.left.fetch_add(self.share.load(Relaxed), Relaxed);
        }
    }

    /// Whether one more may go elsewhere; it is counted then.
    pub fn take(&self) -> bool {
        let one_less = |left| (left >= ONE).then_some(left - ONE);
        let has_share = self.share.load(Relaxed) > 0; // what was saved is no share
        has_share && self.left.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_comes_back_with_requests() {
        let budget = RetryBudget::new(0.2);
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

    #[test]
    fn a_share_of_0_spends_nothing_of_what_was_saved() {
        let budget = RetryBudget::new(0.0);
        assert!(!budget.take());
        budget.set_share(0.2);
        assert!(budget.take());
        budget.set_share(0.0);
        assert!(!budget.take());
    }
}
