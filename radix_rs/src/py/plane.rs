//! The Python face of the data plane.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::buffer::Items;
use super::router::{Router, RouterError};
use super::text::TextCodec;
use super::traces::Span;
use crate::plane::{
    self, Bounds, Buckets, Code, Identity, Reading, Refusal, ReplicaSpec, Sampling, Settings,
};

/// What the control plane is to do, as it was laid down.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct News {
    asks: Vec<(u64, Py<PyBytes>)>,
    given_up: Vec<u64>,
    suspects: Vec<(String, u64, String)>,
    breakers: Vec<(String, &'static str, String)>,
    retries: Vec<(String, String)>,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Activity {
    calls: u32,
    unanswered: u32,
    heard_s: f64,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct TokenTotals {
    requests: u64,
    prompt: u64,
    available: u64,
    captured: u64,
    delivered: u64,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct ModelReading {
    model: String,
    ended: Vec<(&'static str, u64)>,
    first_token: (Vec<u64>, f64),
    inter_token: (Vec<u64>, f64),
}

#[pyclass(frozen, module = "radix_rs")]
struct Plane(plane::Plane);

#[pymethods]
impl Plane {
    #[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
    #[new]
    #[pyo3(signature = (router, *, host, port, shards, max_inflight, queue_size, queue_timeout_s,
        max_open_calls, max_connections, max_held_bytes, retries, retry_budget, write_stall_s, behind,
        first_token_buckets_s, inter_token_buckets_s, now_s, seed, sampling=None))]
    fn new(
        router: &Router,
        host: String,
        port: u16,
        shards: usize,
        max_inflight: usize,
        queue_size: usize,
        queue_timeout_s: f64,
        max_open_calls: usize,
        max_connections: usize,
        max_held_bytes: usize,
        retries: usize,
        retry_budget: f64,
        write_stall_s: f64,
        behind: PathBuf,
        first_token_buckets_s: Vec<f64>,
        inter_token_buckets_s: Vec<f64>,
        now_s: f64,
        seed: u64,
        sampling: Option<(bool, u128)>,
    ) -> PyResult<Self> {
        let settings = Settings {
            host,
            port,
            shards,
            bounds: bounds(max_inflight, queue_size, queue_timeout_s)?,
            max_open_calls,
            max_connections,
            max_held_bytes,
            retries,
            retry_budget,
            write_stall: duration("write_stall_s", write_stall_s)?,
            behind,
            buckets: Buckets {
                first_token_s: first_token_buckets_s,
                inter_token_s: inter_token_buckets_s,
            },
            now_s,
            seed,
            sampling: sampling.map(|(follows_parent, ids_below)| Sampling {
                follows_parent,
                ids_below,
            }),
        };
        let plane = plane::Plane::new(settings, Arc::clone(&router.0));
        Ok(Self(plane?))
    }

    #[getter]
    fn port(&self) -> u16 {
        self.0.address().port()
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.0.start()?)
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }

    #[pyo3(signature = (*, cert, key, client_ca=None))]
    fn set_client_tls(&self, cert: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> PyResult<()> {
        let set = self.0.set_client_tls(Identity { cert, key }, client_ca);
        set.map_err(PyValueError::new_err)
    }

    #[expect(clippy::needless_pass_by_value, reason = "as Python passes them")]
    #[pyo3(signature = (*, ca, identity=None, server_name=None))]
    fn set_replica_tls(
        &self,
        ca: &[u8],
        identity: Option<(Vec<u8>, Vec<u8>)>,
        server_name: Option<&str>,
    ) -> PyResult<()> {
        let identity = identity.as_ref().map(|(cert, key)| Identity { cert, key });
        let set = self.0.set_replica_tls(ca, identity, server_name);
        set.map_err(PyValueError::new_err)
    }

    #[expect(clippy::needless_pass_by_value, reason = "as Python passes them")]
    fn set_caller_tokens(&self, tokens: Vec<Vec<u8>>) {
        self.0.set_caller_tokens(&tokens);
    }

    #[expect(clippy::needless_pass_by_value, reason = "as Python passes them")]
    fn set_admin_tokens(&self, tokens: Vec<Vec<u8>>) {
        self.0.set_admin_tokens(&tokens);
    }

    fn turned_away(&self) -> Vec<(&'static str, u64, String)> {
        self.0.turned_away()
    }

    #[pyo3(signature = (replica, *, address, model, page_size, tokenizer_digest))]
    fn add_replica(
        &self,
        replica: String,
        address: String,
        model: String,
        page_size: u32,
        tokenizer_digest: Vec<u8>,
    ) -> PyResult<u64> {
        let spec = ReplicaSpec {
            id: replica,
            address,
            model,
            page_size,
            tokenizer_digest,
        };
        self.0.add_replica(spec).map_err(RouterError::new_err)
    }

    fn remove_replica(&self, replica: &str, why: &str) {
        self.0.remove_replica(replica, why);
    }

    #[pyo3(signature = (model, tokenizer_digest, codec))]
    fn set_text(&self, model: &str, tokenizer_digest: Vec<u8>, codec: Option<&TextCodec>) {
        let text = codec.map(|codec| (tokenizer_digest, Arc::clone(&codec.0)));
        self.0.set_text(model, text);
    }

    #[pyo3(signature = (replica, why, *, only_unanswered=false))]
    fn end_calls(&self, replica: &str, why: &str, only_unanswered: bool) {
        self.0.end_calls(replica, why, only_unanswered);
    }

    fn activity(&self, replica: &str) -> Activity {
        let activity = self.0.activity(replica);
        Activity {
            calls: activity.calls,
            unanswered: activity.unanswered,
            heard_s: activity.heard_s,
        }
    }

    fn totals(&self, replica: &str) -> TokenTotals {
        let totals = self.0.totals(replica);
        TokenTotals {
            requests: totals.requests,
            prompt: totals.prompt,
            available: totals.available,
            captured: totals.captured,
            delivered: totals.delivered,
        }
    }

    #[pyo3(signature = (*, max_inflight, queue_size, queue_timeout_s, max_open_calls, retries, retry_budget))]
    fn set_bounds(
        &self,
        max_inflight: usize,
        queue_size: usize,
        queue_timeout_s: f64,
        max_open_calls: usize,
        retries: usize,
        retry_budget: f64,
    ) -> PyResult<()> {
        let bounds = bounds(max_inflight, queue_size, queue_timeout_s)?;
        self.0
            .set_bounds(bounds, max_open_calls, retries, retry_budget);
        Ok(())
    }

    fn enter(&self) -> bool {
        self.0.enter()
    }

    fn leave(&self) {
        self.0.leave();
    }

    #[getter]
    fn inflight(&self) -> usize {
        self.0.inflight()
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    #[getter]
    fn queued(&self) -> usize {
        self.0.queued()
    }

    #[getter]
    fn taken(&self) -> u64 {
        self.0.taken()
    }

    #[getter]
    fn connections(&self) -> usize {
        self.0.connections()
    }

    #[getter]
    fn news_fd(&self) -> i32 {
        self.0.news_fd()
    }

    fn take_news(&self, py: Python<'_>) -> News {
        let news = self.0.take_news();
        let asks = news.asks.into_iter();
        News {
            asks: asks
                .map(|ask| (ask.id, PyBytes::new(py, &ask.message).unbind()))
                .collect(),
            given_up: news.given_up,
            suspects: news.suspects,
            breakers: news.breakers,
            retries: news.retries.into(),
        }
    }

    #[pyo3(signature = (ask, *, model, tokens, tokenizer_digest=None))]
    fn answer(
        &self,
        py: Python<'_>,
        ask: u64,
        model: String,
        tokens: &Bound<'_, PyAny>,
        tokenizer_digest: Option<Vec<u8>>,
    ) -> PyResult<()> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(RouterError::new_err)?;
        let reading = Reading {
            model,
            tokens: tokens.read(py, <[u32]>::to_vec),
            tokenizer_digest,
        };
        self.0.answer(ask, Ok(reading));
        Ok(())
    }

    fn refuse(&self, ask: u64, code: usize, message: String) {
        let refusal = Refusal::new(Code::from_number(code), message);
        self.0.answer(ask, Err(refusal));
    }

    fn take_traces(&self, most: usize) -> Vec<(u128, Vec<Span>)> {
        let spans = |spans: Vec<plane::Span>| spans.into_iter().map(Into::into).collect();
        let taken = self.0.take_traces(most).into_iter();
        taken
            .map(|traced| (traced.trace, spans(traced.spans)))
            .collect()
    }

    fn dropped_traces(&self) -> u64 {
        self.0.dropped_traces()
    }

    fn picks(&self) -> Vec<(&'static str, u64)> {
        self.0.picks()
    }

    fn retries(&self) -> u64 {
        self.0.retries()
    }

    fn models(&self) -> Vec<ModelReading> {
        let models = self.0.models().into_iter();
        models
            .map(|reading| ModelReading {
                model: reading.model,
                ended: reading.ended,
                first_token: reading.first_token,
                inter_token: reading.inter_token,
            })
            .collect()
    }
}

fn bounds(max_inflight: usize, queue_size: usize, queue_timeout_s: f64) -> PyResult<Bounds> {
    Ok(Bounds {
        max_inflight,
        queue_size,
        queue_timeout: duration("queue_timeout_s", queue_timeout_s)?,
    })
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("{name} is {seconds}: {error}")))
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Plane>()?;
    module.add_class::<News>()?;
    module.add_class::<Activity>()?;
    module.add_class::<TokenTotals>()?;
    module.add_class::<ModelReading>()
}
