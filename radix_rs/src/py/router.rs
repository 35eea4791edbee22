//! The Python face of the router.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

use super::arguments::{at_least, parse_key};
use super::buffer::Items;
use crate::chain::HashKey;
use crate::error::RouterError as Error;
use crate::pick::{self, Explained, Prompt, Settings, Thresholds, Weights};

create_exception!(radix_rs, RouterError, PyException, "Wrong use of a router.");

/// Batches above this many bytes are applied without the interpreter's lock: some 10,000 blocks, a millisecond.
const LARGE_BATCH_BYTES: usize = 80_000;

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
struct Router(pick::Router);

#[pymethods]
impl Router {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
    #[pyo3(signature = (
        *, hash_key, policy="cost", k=1.75, decode_weight=1.0, cache_threshold=0.3, balance_abs_threshold=64,
        balance_rel_threshold=1.5, load_factor=1.25, seed=0, index_max_bytes=None,
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
        seed: u64,
        index_max_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let settings = settings(
            parse_key(hash_key)?,
            policy,
            (k, decode_weight),
            (
                cache_threshold,
                balance_abs_threshold,
                balance_rel_threshold,
            ),
            load_factor,
            seed,
        )?;
        let router = pick::Router::new(&settings);
        if let Some(max_bytes) = index_max_bytes {
            router.set_index_max_bytes(max_bytes);
        }
        Ok(Self(router))
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

    fn prefilled(&self, ticket: u64) {
        self.0.prefilled(ticket);
    }

    fn release(&self, ticket: u64) {
        self.0.release(ticket);
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
pub(super) fn settings(
    hash_key: HashKey,
    policy: &str,
    (k, decode): (f64, f64),
    (cache, balance_abs, balance_rel): (f64, u64, f64),
    load_factor: f64,
    seed: u64,
) -> PyResult<Settings> {
    Ok(Settings {
        hash_key,
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
        seed,
    })
}

fn token_buffer(tokens: &Bound<'_, PyAny>) -> PyResult<Items<u32>> {
    Items::get("tokens", tokens).map_err(RouterError::new_err)
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RouterError", module.py().get_type::<RouterError>())?;
    module.add_class::<Router>()?;
    module.add_class::<BlockSet>()?;
    module.add_class::<Applied>()?;
    module.add_class::<Load>()?;
    module.add_class::<Candidate>()?;
    module.add_class::<Pick>()?;
    module.add_class::<MirrorStats>()
}
