//! The Python face of the simulator.

use std::ops::ControlFlow;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::arguments::at_least;
use super::rules::Rules;
use crate::chain::HashKey;
use crate::delta::PrefillOrder;
use crate::pick::Settings;
use crate::sim::{self, Delivery, Dispatcher, Engine, Outcome, Replica, Routers};

#[pyclass(module = "radix_rs")]
struct Trace(sim::Trace);

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (*, block_size))]
    fn new(block_size: u32) -> PyResult<Self> {
        if block_size == 0 {
            return Err(PyValueError::new_err(
                "block_size is 0, expected at least 1",
            ));
        }
        Ok(Self(sim::Trace::new(block_size)))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "arguments as Python passes them"
    )]
    fn add(
        &mut self,
        arrived_s: f64,
        prompt_tokens: u64,
        output_tokens: u64,
        hashes: Vec<u64>,
    ) -> PyResult<()> {
        if !(arrived_s.is_finite() && arrived_s >= 0.0) {
            let message = format!("it comes at {arrived_s} s, expected a time from 0 on");
            return Err(PyValueError::new_err(message));
        }
        self.0
            .push(arrived_s, prompt_tokens, output_tokens, &hashes)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __len__(&self) -> usize {
        self.0.requests().len()
    }

    #[getter]
    fn num_blocks(&self) -> usize {
        self.0.num_blocks()
    }
}

/// One replica as it is when a request is to be placed.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct ReplicaState {
    in_flight: u64,
    requests: u64,
    pending_tokens: u64,
    cached_blocks: usize,
    matched_blocks: usize,
}

#[pyclass(frozen, get_all, module = "radix_rs")]
struct Simulated {
    first_token_s: Vec<f64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    matched_tokens: u64,
    prefilled_tokens: Vec<u64>,
    requests: Vec<u64>,
    snapshots: u64,
}

impl Simulated {
    fn new(outcome: Outcome, matched_tokens: u64, snapshots: u64) -> Self {
        Self {
            first_token_s: outcome.first_token_s,
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: outcome.cached_tokens,
            matched_tokens,
            prefilled_tokens: outcome.prefilled_tokens,
            requests: outcome.requests,
            snapshots,
        }
    }
}

/// A Python object in the place of the routers.
struct Picker<'py>(Bound<'py, PyAny>);

impl Dispatcher for Picker<'_> {
    type Error = PyErr;

    fn pick(
        &mut self,
        now_s: f64,
        request: usize,
        trace: &sim::Trace,
        replicas: &[Replica],
    ) -> PyResult<usize> {
        let prompt = &trace.requests()[request];
        let states = replicas.iter().map(|replica| ReplicaState {
            in_flight: replica.in_flight(),
            requests: replica.picked(),
            pending_tokens: replica.pending_tokens(trace),
            cached_blocks: replica.cached_blocks(),
            matched_blocks: replica.matched_blocks(trace, prompt),
        });
        let states = states.map(|state| Bound::new(self.0.py(), state));
        let states = PyList::new(self.0.py(), states.collect::<PyResult<Vec<_>>>()?)?;
        let picked: usize = self
            .0
            .call_method1("pick", (now_s, request, states))?
            .extract()?;
        if picked >= replicas.len() {
            let message = format!("replica {picked} of {}", replicas.len());
            return Err(PyIndexError::new_err(message));
        }
        Ok(picked)
    }

    fn first_token(&mut self, request: usize) -> PyResult<()> {
        self.0.call_method1("first_token", (request,)).map(drop)
    }

    fn ended(&mut self, request: usize) -> PyResult<()> {
        self.0.call_method1("ended", (request,)).map(drop)
    }
}

/// What the simulated replicas are like.
#[pyclass(frozen, from_py_object, module = "radix_rs")]
#[derive(Clone, Copy)]
struct SimulatedReplicas {
    number: usize,
    engine: Engine,
}

#[pymethods]
impl SimulatedReplicas {
    #[new]
    #[pyo3(signature = (
        number, *, cache_tokens, order="shortest", chunk_tokens=4096, prefill_tokens_per_s=20_000.0, decode_s=0.02,
    ))]
    fn new(
        number: usize,
        cache_tokens: u64,
        order: &str,
        chunk_tokens: u64,
        prefill_tokens_per_s: f64,
        decode_s: f64,
    ) -> PyResult<Self> {
        if number == 0 || chunk_tokens == 0 {
            let message = format!(
                "{number} replicas, chunks of {chunk_tokens} tokens: expected at least 1 of each"
            );
            return Err(PyValueError::new_err(message));
        }
        if !(prefill_tokens_per_s.is_finite() && prefill_tokens_per_s > 0.0) {
            let message = format!(
                "prefill_tokens_per_s is {prefill_tokens_per_s}, expected a number above 0"
            );
            return Err(PyValueError::new_err(message));
        }
        Ok(Self {
            number,
            engine: Engine {
                order: parse_order(order)?,
                chunk_tokens,
                prefill_tokens_per_s,
                decode_s: at_least("decode_s", decode_s, 0.0)?,
                cache_tokens,
                ..Engine::default()
            },
        })
    }
}

#[expect(clippy::too_many_arguments, reason = "arguments as Python passes them")]
#[pyfunction]
#[pyo3(signature = (
    trace, replicas, *, rules=Rules::default(), seed=0, routers=1, lag_s=0.0, loss=0.0, progress=None,
))]
fn simulate(
    trace: &Bound<'_, Trace>,
    replicas: SimulatedReplicas,
    rules: Rules,
    seed: u64,
    routers: usize,
    lag_s: f64,
    loss: f64,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Simulated> {
    if routers == 0 || !(0.0..1.0).contains(&loss) {
        let message = format!(
            "{routers} routers, loss {loss}: expected at least 1, and a part from 0 to below 1"
        );
        return Err(PyValueError::new_err(message));
    }
    let settings = Settings {
        hash_key: HashKey::new([0; 16]),
        rules: rules.0,
        seed,
    };
    let delivery = Delivery {
        lag_s: at_least("lag_s", lag_s, 0.0)?,
        loss,
    };
    let block_size = trace.borrow().0.block_size();
    let mut ours = Routers::new(routers, &settings, replicas.number, block_size, delivery)?;
    let outcome = play(trace, &replicas, &mut ours, progress)?;
    Ok(Simulated::new(
        outcome,
        ours.matched_tokens(),
        ours.snapshots(),
    ))
}

/// The same with `picker` in the place of routers.
#[pyfunction]
#[pyo3(signature = (trace, replicas, picker))]
fn simulate_picker(
    trace: &Bound<'_, Trace>,
    replicas: SimulatedReplicas,
    picker: Bound<'_, PyAny>,
) -> PyResult<Simulated> {
    let outcome = play(trace, &replicas, &mut Picker(picker), None)?;
    Ok(Simulated::new(outcome, 0, 0))
}

fn play<D: Dispatcher>(
    trace: &Bound<'_, Trace>,
    replicas: &SimulatedReplicas,
    dispatcher: &mut D,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Outcome>
where
    PyErr: From<D::Error>,
{
    let mut stopped = Ok(());
    let mut told = |requests: usize| {
        let told = progress.map_or(Ok(()), |each| each.call1((requests,)).map(drop));
        stopped = told.and_then(|()| trace.py().check_signals());
        if stopped.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let trace = &trace.borrow().0;
    let outcome = sim::run(
        trace,
        replicas.number,
        replicas.engine,
        dispatcher,
        &mut told,
    )?;
    stopped?;
    Ok(outcome.unwrap_or_default())
}

fn parse_order(name: &str) -> PyResult<PrefillOrder> {
    match name {
        "shortest" => Ok(PrefillOrder::Shortest),
        "fcfs" => Ok(PrefillOrder::Fcfs),
        _ => {
            let message = format!("unknown order {name:?}, expected shortest or fcfs");
            Err(PyValueError::new_err(message))
        }
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Trace>()?;
    module.add_class::<SimulatedReplicas>()?;
    module.add_class::<ReplicaState>()?;
    module.add_class::<Simulated>()?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_picker, module)?)
}
