//! The Python face of the router.

use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use super::arguments::parse_key;
use super::buffer::Items;
use super::router_answers::{
    Applied, BlockSet, Branches, Breaker, Candidate, Load, MirrorStats, Pick,
};
use super::rules::Rules;
use crate::error::RouterError as Error;
use crate::pick::{self, Prompt, Settings};

create_exception!(radix_rs, RouterError, PyException, "Wrong use of a router.");

/// Batches above this many bytes are applied without the interpreter's lock: some 10,000 blocks, a millisecond.
const LARGE_BATCH_BYTES: usize = 80_000;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        RouterError::new_err(error.to_string())
    }
}

#[pyclass(frozen, module = "radix_rs")]
pub(super) struct Router(pub(super) Arc<pick::Router>);

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (*, hash_key, rules=Rules::default(), seed=0, index_max_bytes=None))]
    fn new(
        hash_key: &[u8],
        rules: Rules,
        seed: u64,
        index_max_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let router = pick::Router::new(&Settings {
            hash_key: parse_key(hash_key)?,
            rules: rules.0,
            seed,
        });
        if let Some(max_bytes) = index_max_bytes {
            router.set_index_max_bytes(max_bytes);
        }
        Ok(Self(Arc::new(router)))
    }

    fn follow(&self, rules: Rules) {
        self.0.follow(&rules.0);
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
        Ok(self.0.mirror(replica)?.into())
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
        Ok(self.0.load(replica)?.into())
    }

    fn blocks(&self, replica: &str) -> PyResult<Vec<u64>> {
        Ok(self.0.blocks(replica)?)
    }

    fn block_set(&self, py: Python<'_>, replica: &str) -> PyResult<BlockSet> {
        Ok(BlockSet(py.detach(|| self.0.block_set(replica))?))
    }

    #[pyo3(signature = (replica, *, below=None, start=None, limit))]
    fn branches(
        &self,
        py: Python<'_>,
        replica: &str,
        below: Option<u64>,
        start: Option<u64>,
        limit: usize,
    ) -> PyResult<Branches> {
        let branches = py.detach(|| self.0.branches(replica, below, start, limit))?;
        Ok(branches.into())
    }

    #[getter]
    fn index_clock(&self) -> u32 {
        self.0.index_clock()
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
        Ok(self.0.breaker(replica, now_s)?.into())
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

fn token_buffer(tokens: &Bound<'_, PyAny>) -> PyResult<Items<u32>> {
    Items::get("tokens", tokens).map_err(RouterError::new_err)
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RouterError", module.py().get_type::<RouterError>())?;
    module.add_class::<Router>()
}
