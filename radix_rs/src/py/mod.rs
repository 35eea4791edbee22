//! The only code that names pyo3: takes arguments, calls the core, maps the error.

mod answers;
mod arguments;
mod buffer;
mod chain;
mod router;
mod sim;
mod tree;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    chain::register(module)?;
    tree::register(module)?;
    router::register(module)?;
    sim::register(module)
}
