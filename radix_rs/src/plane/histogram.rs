//! Counts by buckets, from many threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Durations by the least bound that is not below them.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds_s: Vec<f64>,
    /// One more than bounds.
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Histogram {
    pub fn new(bounds_s: &[f64]) -> Self {
        Self {
            bounds_s: bounds_s.to_vec(),
            counts: (0..=bounds_s.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }

    pub fn observe(&self, seconds: f64) {
        let place = self.bounds_s.partition_point(|bound| *bound < seconds);
        self.counts[place].fetch_add(1, Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a duration; centuries do not come"
        )]
        self.sum_ns.fetch_add((seconds * 1e9) as u64, Relaxed);
    }

    /// The count of each bucket, the last without a bound, and the sum in seconds.
    pub fn read(&self) -> (Vec<u64>, f64) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Relaxed))
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a sum for a page")]
        let sum_s = self.sum_ns.load(Relaxed) as f64 / 1e9;
        (counts, sum_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_is_in_its_bucket() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for seconds in [0.05, 0.1, 0.5, 1.0, 7.0] {
            histogram.observe(seconds);
        }
        let (counts, sum_s) = histogram.read();
        assert_eq!(counts, [2, 2, 1]);
        assert!((sum_s - 8.65).abs() < 1e-6);
    }
}
