//! The Python face of the chain hash.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::arguments::{Natural, parse_key};
use super::buffer::Items;
use super::tree_answers::TreeError;
use crate::chain::{self, HashKey};

#[pyfunction]
fn derive_hash_key<'py>(py: Python<'py>, secret: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &HashKey::derive(secret).bytes())
}

#[pyfunction]
fn key_check(hash_key: &[u8]) -> PyResult<u64> {
    Ok(chain::key_check(&parse_key(hash_key)?))
}

#[pyfunction]
#[pyo3(signature = (
    tokens, *, hash_key, model, block_size, extra_key = "", cache_salt = ""
))]
fn chain_hashes(
    py: Python<'_>,
    tokens: &Bound<'_, PyAny>,
    hash_key: &[u8],
    model: &str,
    block_size: Natural,
    extra_key: &str,
    cache_salt: &str,
) -> PyResult<Vec<u64>> {
    let key = parse_key(hash_key)?;
    if block_size.0 == 0 {
        return Err(TreeError::new_err("block_size: expected at least 1, got 0"));
    }
    let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
    let seed = chain::namespace_seed(&key, model, extra_key, cache_salt);
    let mut hashes = Vec::new();
    tokens.read(py, |tokens| {
        chain::extend_chain(&key, seed, tokens, block_size.length(), &mut hashes);
    });
    Ok(hashes)
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("HASH_VERSION", chain::HASH_VERSION)?;
    module.add_function(wrap_pyfunction!(derive_hash_key, module)?)?;
    module.add_function(wrap_pyfunction!(key_check, module)?)?;
    module.add_function(wrap_pyfunction!(chain_hashes, module)?)
}
