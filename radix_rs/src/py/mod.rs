//! The only code that names pyo3: takes arguments, calls the core, maps the error.

mod arguments;
mod buffer;
mod chain;
mod plane;
mod router;
mod router_answers;
mod rules;
mod sim;
mod text;
mod traces;
mod tree;
mod tree_answers;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    chain::register(module)?;
    tree::register(module)?;
    text::register(module)?;
    rules::register(module)?;
    router::register(module)?;
    router_answers::register(module)?;
    plane::register(module)?;
    traces::register(module)?;
    sim::register(module)
}
