//! The Python face of what a router picks by.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::at_least;
use crate::pick::{self, BreakerLimits, Thresholds, Weights};

/// Of the times of a breaker.
const MIN_OPEN_S: f64 = 0.001;

#[pyclass(frozen, from_py_object, module = "radix_rs")]
#[derive(Clone, Copy, Default)]
pub(super) struct Rules(pub pick::Rules);

#[pymethods]
impl Rules {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
    #[pyo3(signature = (
        *,
        policy=pick::Rules::default().policy.name(),
        uncached_weight=Weights::default().k,
        decode_weight=Weights::default().decode,
        cache_threshold=Thresholds::default().cache,
        balance_abs_threshold=Thresholds::default().balance_abs,
        balance_rel_threshold=Thresholds::default().balance_rel,
        load_factor=pick::Rules::default().load_factor,
        breaker_failures=BreakerLimits::default().failures,
        breaker_window_s=BreakerLimits::default().window_s,
        breaker_open_s=BreakerLimits::default().open_s,
        breaker_max_open_s=BreakerLimits::default().max_open_s,
    ))]
    fn new(
        policy: &str,
        uncached_weight: f64,
        decode_weight: f64,
        cache_threshold: f64,
        balance_abs_threshold: u64,
        balance_rel_threshold: f64,
        load_factor: f64,
        breaker_failures: u32,
        breaker_window_s: f64,
        breaker_open_s: f64,
        breaker_max_open_s: f64,
    ) -> PyResult<Self> {
        if breaker_failures == 0 {
            let message = "breaker_failures is 0, expected at least 1";
            return Err(PyValueError::new_err(message));
        }
        let open_s = at_least("breaker_open_s", breaker_open_s, MIN_OPEN_S)?;
        Ok(Self(pick::Rules {
            policy: policy.parse().map_err(PyValueError::new_err)?,
            weights: Weights {
                k: at_least("uncached_weight", uncached_weight, 0.0)?,
                decode: at_least("decode_weight", decode_weight, 0.0)?,
            },
            thresholds: Thresholds {
                cache: at_least("cache_threshold", cache_threshold, 0.0)?,
                balance_abs: balance_abs_threshold,
                balance_rel: at_least("balance_rel_threshold", balance_rel_threshold, 1.0)?,
            },
            load_factor: at_least("load_factor", load_factor, 1.0)?,
            breaker: BreakerLimits {
                failures: breaker_failures,
                window_s: at_least("breaker_window_s", breaker_window_s, MIN_OPEN_S)?,
                open_s,
                max_open_s: at_least("breaker_max_open_s", breaker_max_open_s, open_s)?,
            },
        }))
    }

    #[getter]
    fn policy(&self) -> &'static str {
        self.0.policy.name()
    }

    #[getter]
    fn uncached_weight(&self) -> f64 {
        self.0.weights.k
    }

    #[getter]
    fn decode_weight(&self) -> f64 {
        self.0.weights.decode
    }

    #[getter]
    fn cache_threshold(&self) -> f64 {
        self.0.thresholds.cache
    }

    #[getter]
    fn balance_abs_threshold(&self) -> u64 {
        self.0.thresholds.balance_abs
    }

    #[getter]
    fn balance_rel_threshold(&self) -> f64 {
        self.0.thresholds.balance_rel
    }

    #[getter]
    fn load_factor(&self) -> f64 {
        self.0.load_factor
    }

    #[getter]
    fn breaker_failures(&self) -> u32 {
        self.0.breaker.failures
    }

    #[getter]
    fn breaker_window_s(&self) -> f64 {
        self.0.breaker.window_s
    }

    #[getter]
    fn breaker_open_s(&self) -> f64 {
        self.0.breaker.open_s
    }

    #[getter]
    fn breaker_max_open_s(&self) -> f64 {
        self.0.breaker.max_open_s
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Rules>()
}
