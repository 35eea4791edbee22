//! The only code that names pyo3: takes arguments, calls the core, maps the error.

mod buffer;
mod router;
mod tree;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("HASH_VERSION", crate::chain::HASH_VERSION)?;
    tree::register(module)?;
    router::register(module)
}
