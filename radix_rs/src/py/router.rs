//! The Python face of the router.

use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

use super::arguments::{at_least, parse_key};
use super::buffer::Items;
use crate::error::RouterError as Error;
use crate::pick::{self, BreakerLimits, Explained, Prompt, Rules, Settings, Thresholds, Weights};

create_exception!(radix_rs, RouterError, PyException, "Wrong use of a router.");

/// Batches above this many bytes are applied without the interpreter's lock: some 10,000 blocks, a millisecond.
const LARGE_BATCH_BYTES: usize = 80_000;

/// Of the times of a breaker.
const MIN_OPEN_S: f64 = 0.001;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        RouterError::new_err(error.to_string())
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Applied {
    outcome: &'static str,
    epoch: u64,
    seq: u64,
    stored: u64,
    removed: u64,
}

impl From<pick::Applied> for Applied {
    fn from(applied: pick::Applied) -> Self {
        Self {
            outcome: applied.outcome.name(),
            epoch: applied.epoch,
            seq: applied.seq,
            stored: applied.stored,
            removed: applied.removed,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Load {
    running: u32,
    waiting: u32,
    pending_tokens: u64,
    free_slots: u64,
    evictable_slots: u64,
    total_slots: u64,
    draining: bool,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Candidate {
    replica: String,
    eligible: bool,
    breaker: &'static str,
    matched: u64,
    expected: u64,
    ahead: f64,
    delayed_requests: f64,
    decode_pressure: f64,
    cost: f64,
}

impl From<Explained> for Candidate {
    fn from(explained: Explained) -> Self {
        let terms = explained.candidate.terms;
        Self {
            replica: explained.replica,
            eligible: explained.eligible,
            breaker: explained.breaker.name(),
            matched: explained.candidate.matched,
            expected: explained.candidate.expected,
            ahead: terms.ahead,
            delayed_requests: terms.delayed_requests,
            decode_pressure: terms.decode_pressure,
            cost: terms.cost,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Breaker {
    state: &'static str,
    openings: u64,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Pick {
    replica: String,
    matched: u64,
    available: u64,
    reason: &'static str,
    ticket: u64,
}

impl From<pick::Pick> for Pick {
    fn from(pick: pick::Pick) -> Self {
        Self {
            replica: pick.replica,
            matched: pick.matched,
            available: pick.available,
            reason: pick.reason.name(),
            ticket: pick.ticket,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct MirrorStats {
    epoch: u64,
    seq: u64,
    count: u64,
    digest: u64,
    forgotten: u64,
}

#[pyclass(frozen, module = "radix_rs")]
struct BlockSet(pick::BlockSet);

#[pymethods]
impl BlockSet {
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    #[getter]
    fn forgotten(&self) -> u64 {
        self.0.forgotten
    }

    #[getter]
    fn count(&self) -> usize {
        self.0.count()
    }

    fn not_in(&self, py: Python<'_>, other: &Self, limit: usize) -> (usize, Vec<u64>) {
        py.detach(|| self.0.not_in(&other.0, limit))
    }
}

#[pyclass(frozen, module = "radix_rs")]
pub(super) struct Router(pub(super) Arc<pick::Router>);

#[pymethods]
impl Router {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
    #[pyo3(signature = (
        *, hash_key, policy="cost", k=1.75, decode_weight=1.0, cache_threshold=0.3, balance_abs_threshold=64,
        balance_rel_threshold=1.5, load_factor=1.25, breaker_failures=5, breaker_window_s=10.0, breaker_open_s=1.0,
        breaker_max_open_s=30.0, seed=0, index_max_bytes=None,
    ))]
    fn new(
        hash_key: &[u8],
        policy: &str,
        k: f64,
        decode_weight: f64,
        cache_threshold: f64,
        balance_abs_threshold: u64,
        balance_rel_threshold: f64,
        load_factor: f64,
        breaker_failures: u32,
        breaker_window_s: f64,
        breaker_open_s: f64,
        breaker_max_open_s: f64,
        seed: u64,
        index_max_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let settings = Settings {
            hash_key: parse_key(hash_key)?,
            rules: rules(
                policy,
                (k, decode_weight),
                (
                    cache_threshold,
                    balance_abs_threshold,
                    balance_rel_threshold,
                ),
                load_factor,
                breaker(
                    breaker_failures,
                    breaker_window_s,
                    breaker_open_s,
                    breaker_max_open_s,
                )?,
            )?,
            seed,
        };
        let router = pick::Router::new(&settings);
        if let Some(max_bytes) = index_max_bytes {
            router.set_index_max_bytes(max_bytes);
        }
        Ok(Self(Arc::new(router)))
    }

    #[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
    #[pyo3(signature = (
        *, policy, k, decode_weight, cache_threshold, balance_abs_threshold, balance_rel_threshold, load_factor,
        breaker_failures, breaker_window_s, breaker_open_s, breaker_max_open_s,
    ))]
    fn follow(
        &self,
        policy: &str,
        k: f64,
        decode_weight: f64,
        cache_threshold: f64,
        balance_abs_threshold: u64,
        balance_rel_threshold: f64,
        load_factor: f64,
        breaker_failures: u32,
        breaker_window_s: f64,
        breaker_open_s: f64,
        breaker_max_open_s: f64,
    ) -> PyResult<()> {
        let rules = rules(
            policy,
            (k, decode_weight),
            (
                cache_threshold,
                balance_abs_threshold,
                balance_rel_threshold,
            ),
            load_factor,
            breaker(
                breaker_failures,
                breaker_window_s,
                breaker_open_s,
                breaker_max_open_s,
            )?,
        )?;
        self.0.follow(&rules);
        Ok(())
    }

    #[pyo3(signature = (replica, *, model, block_size))]
    fn add_replica(&self, replica: &str, model: &str, block_size: u32) -> PyResult<()> {
        Ok(self.0.add_replica(replica, model, block_size)?)
    }

    fn remove_replica(&self, replica: &str) {
        self.0.remove_replica(replica);
    }

    fn set_eligible(&self, replica: &str, eligible: bool) -> PyResult<()> {
        Ok(self.0.set_eligible(replica, eligible)?)
    }

    fn doubt(&self, replica: &str) -> PyResult<()> {
        Ok(self.0.doubt(replica)?)
    }

    fn apply(&self, py: Python<'_>, replica: &str, batch: &[u8]) -> PyResult<Applied> {
        let apply = || self.0.apply(replica, batch);
        Ok(sized(py, batch, apply)?.into())
    }

    fn clear(&self, replica: &str) -> PyResult<()> {
        Ok(self.0.clear(replica)?)
    }

    fn apply_snapshot(
        &self,
        py: Python<'_>,
        replica: &str,
        batch: &[u8],
        last: bool,
    ) -> PyResult<Applied> {
        let apply = || self.0.apply_snapshot(replica, batch, last);
        Ok(sized(py, batch, apply)?.into())
    }

    fn mirror(&self, replica: &str) -> PyResult<MirrorStats> {
        let mirror = self.0.mirror(replica)?;
        Ok(MirrorStats {
            epoch: mirror.epoch,
            seq: mirror.seq,
            count: mirror.count,
            digest: mirror.digest,
            forgotten: mirror.forgotten,
        })
    }

    fn mirror_size_bytes(&self, replica: &str) -> PyResult<u64> {
        Ok(self.0.mirror_size_bytes(replica)?)
    }

    #[getter]
    fn index_max_bytes(&self) -> usize {
        self.0.index_max_bytes()
    }

    #[getter]
    fn index_size_bytes(&self) -> usize {
        self.0.index_size_bytes()
    }

    fn load(&self, replica: &str) -> PyResult<Load> {
        let load = self.0.load(replica)?;
        Ok(Load {
            running: load.running,
            waiting: load.waiting,
            pending_tokens: load.pending_tokens,
            free_slots: load.free_slots,
            evictable_slots: load.evictable_slots,
            total_slots: load.total_slots,
            draining: load.draining,
        })
    }

    fn blocks(&self, replica: &str) -> PyResult<Vec<u64>> {
        Ok(self.0.blocks(replica)?)
    }

    fn block_set(&self, py: Python<'_>, replica: &str) -> PyResult<BlockSet> {
        Ok(BlockSet(py.detach(|| self.0.block_set(replica))?))
    }

    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "arguments as Python passes them"
    )]
    #[pyo3(signature = (tokens, *, model, extra_key="", cache_salt="", exclude=Vec::new(), now_s))]
    fn pick(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        model: &str,
        extra_key: &str,
        cache_salt: &str,
        exclude: Vec<String>,
        now_s: f64,
    ) -> PyResult<Option<Pick>> {
        let pick = token_buffer(tokens)?.read(py, |tokens| {
            let prompt = Prompt {
                tokens,
                model,
                extra_key,
                cache_salt,
            };
            self.0.pick(prompt, &exclude, now_s)
        });
        Ok(pick.map(Pick::from))
    }

    #[pyo3(signature = (tokens, *, model, extra_key="", cache_salt="", now_s))]
    fn peek(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        model: &str,
        extra_key: &str,
        cache_salt: &str,
        now_s: f64,
    ) -> PyResult<Option<Pick>> {
        let pick = token_buffer(tokens)?.read(py, |tokens| {
            let prompt = Prompt {
                tokens,
                model,
                extra_key,
                cache_salt,
            };
            self.0.peek(prompt, now_s)
        });
        Ok(pick.map(Pick::from))
    }

    #[pyo3(signature = (tokens, *, model, extra_key="", cache_salt="", now_s))]
    fn explain(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        model: &str,
        extra_key: &str,
        cache_salt: &str,
        now_s: f64,
    ) -> PyResult<Vec<Candidate>> {
        let explained = token_buffer(tokens)?.read(py, |tokens| {
            let prompt = Prompt {
                tokens,
                model,
                extra_key,
                cache_salt,
            };
            self.0.explain(prompt, now_s)
        });
        Ok(explained.into_iter().map(Candidate::from).collect())
    }

    fn prefilled(&self, ticket: u64) -> bool {
        self.0.prefilled(ticket)
    }

    #[pyo3(signature = (ticket, *, now_s))]
    fn failed(&self, ticket: u64, now_s: f64) -> bool {
        self.0.failed(ticket, now_s)
    }

    #[pyo3(signature = (ticket, *, until_s))]
    fn overloaded(&self, ticket: u64, until_s: f64) {
        self.0.overloaded(ticket, until_s);
    }

    fn release(&self, ticket: u64) {
        self.0.release(ticket);
    }

    #[pyo3(signature = (replica, *, now_s))]
    fn breaker(&self, replica: &str, now_s: f64) -> PyResult<Breaker> {
        let breaker = self.0.breaker(replica, now_s)?;
        Ok(Breaker {
            state: breaker.state.name(),
            openings: breaker.openings,
        })
    }

    #[getter]
    fn last_resorts(&self) -> u64 {
        self.0.last_resorts()
    }

    fn in_flight(&self, replica: &str) -> PyResult<u32> {
        Ok(self.0.in_flight(replica)?)
    }

    fn check(&self) -> PyResult<()> {
        Ok(self.0.check()?)
    }
}

/// Runs `apply` without the interpreter's lock if the batch is large.
fn sized<T: Send>(py: Python<'_>, batch: &[u8], apply: impl FnOnce() -> T + Send) -> T {
    if batch.len() > LARGE_BATCH_BYTES {
        py.detach(apply)
    } else {
        apply()
    }
}

/// Checks what a policy is set to.
pub(super) fn rules(
    policy: &str,
    (k, decode): (f64, f64),
    (cache, balance_abs, balance_rel): (f64, u64, f64),
    load_factor: f64,
    breaker: BreakerLimits,
) -> PyResult<Rules> {
    Ok(Rules {
        policy: policy.parse().map_err(PyValueError::new_err)?,
        weights: Weights {
            k: at_least("k", k, 0.0)?,
            decode: at_least("decode_weight", decode, 0.0)?,
        },
        thresholds: Thresholds {
            cache: at_least("cache_threshold", cache, 0.0)?,
            balance_abs,
            balance_rel: at_least("balance_rel_threshold", balance_rel, 1.0)?,
        },
        load_factor: at_least("load_factor", load_factor, 1.0)?,
        breaker,
    })
}

fn breaker(failures: u32, window_s: f64, open_s: f64, max_open_s: f64) -> PyResult<BreakerLimits> {
    if failures == 0 {
        let message = "breaker_failures is 0, expected at least 1";
        return Err(PyValueError::new_err(message));
    }
    let open_s = at_least("breaker_open_s", open_s, MIN_OPEN_S)?;
    Ok(BreakerLimits {
        failures,
        window_s: at_least("breaker_window_s", window_s, MIN_OPEN_S)?,
        open_s,
        max_open_s: at_least("breaker_max_open_s", max_open_s, open_s)?,
    })
}

fn token_buffer(tokens: &Bound<'_, PyAny>) -> PyResult<Items<u32>> {
    Items::get("tokens", tokens).map_err(RouterError::new_err)
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RouterError", module.py().get_type::<RouterError>())?;
    module.add_class::<Router>()?;
    module.add_class::<BlockSet>()?;
    module.add_class::<Breaker>()?;
    module.add_class::<Applied>()?;
    module.add_class::<Load>()?;
    module.add_class::<Candidate>()?;
    module.add_class::<Pick>()?;
    module.add_class::<MirrorStats>()
}
