//! What Python passes, as the core takes it, or an error that says what was expected.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::buffer::Items;
use super::tree_answers::TreeError;
use crate::chain::HashKey;
use crate::tree::{Claim, EvictPolicy};

/// A length, handle or receipt.
#[derive(Clone, Copy)]
pub(super) struct Natural(pub u64);

impl FromPyObject<'_, '_> for Natural {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        object
            .extract()
            .map(Self)
            .map_err(|_| TreeError::new_err(format!("expected an int in 0..2^64, got {}", *object)))
    }
}

impl Natural {
    /// As a length; more than memory can hold is as good as the most.
    pub(super) fn length(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// How much a request matters.
#[derive(Clone, Copy)]
pub(super) struct Priority(pub i64);

impl FromPyObject<'_, '_> for Priority {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|_| {
            TreeError::new_err(format!(
                "priority: expected an int in -2^63..2^63, got {}",
                *object
            ))
        })
    }
}

/// A buffer that takes a slot for every token.
pub(super) fn room_for(tokens: &Items<u32>, slots_out: &Bound<'_, PyAny>) -> PyResult<Items<i32>> {
    let out = Items::<i32>::get_writable("slots_out", slots_out).map_err(TreeError::new_err)?;
    if out.len() < tokens.len() {
        return Err(TreeError::new_err(format!(
            "slots_out: expected room for {} slots, one for each token, got {}",
            tokens.len(),
            out.len()
        )));
    }
    Ok(out)
}

pub(super) fn claim(owned_from: Natural, counted_to: Natural, priority: Priority) -> Claim {
    Claim {
        owned_from: owned_from.length(),
        counted_to: counted_to.length(),
        priority: priority.0,
    }
}

pub(super) fn at_least(name: &str, value: f64, least: f64) -> PyResult<f64> {
    if value.is_finite() && value >= least {
        Ok(value)
    } else {
        let message = format!("{name} is {value}, expected a finite number of at least {least}");
        Err(PyValueError::new_err(message))
    }
}

pub(super) fn parse_key(hash_key: &[u8]) -> PyResult<HashKey> {
    <[u8; 16]>::try_from(hash_key)
        .map(HashKey::new)
        .map_err(|_| {
            PyValueError::new_err(format!(
                "hash_key: expected 16 bytes, got {}",
                hash_key.len()
            ))
        })
}

pub(super) fn parse_policy(
    name: &str,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<EvictPolicy> {
    let options: Vec<(String, u64)> = options
        .map(|options| options.iter().map(policy_option).collect())
        .transpose()?
        .unwrap_or_default();
    let options: Vec<(&str, u64)> = options
        .iter()
        .map(|(option, value)| (option.as_str(), *value))
        .collect();
    Ok(EvictPolicy::new(name, &options)?)
}

fn policy_option((option, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)) -> PyResult<(String, u64)> {
    let option = option.to_string();
    let value = value.extract().map_err(|_| {
        TreeError::new_err(format!(
            "policy option {option}: expected an int in 0..2^64, got {value}"
        ))
    })?;
    Ok((option, value))
}
