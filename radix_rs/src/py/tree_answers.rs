//! What a tree answers, as Python sees it.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zerocopy::IntoBytes;

use crate::delta::encode_events;
use crate::error;
use crate::tree::{self, SlotRanges};

create_exception!(radix_rs, TreeError, PyException);

impl From<error::TreeError> for PyErr {
    fn from(error: error::TreeError) -> Self {
        TreeError::new_err(error.to_string())
    }
}

/// What the tree has of a key.
#[pyclass(frozen, get_all, module = "radix_rs", freelist = 8)]
pub(super) struct Match {
    pub length: usize,
    pub node: u64,
}

/// The chunks of a snapshot.
#[pyclass(module = "radix_rs")]
pub(super) struct Snapshot {
    pub chunks: tree::Snapshot,
}

#[pymethods]
impl Snapshot {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let chunk = py.detach(|| self.chunks.next().map(encode_events))?;
        Some(PyBytes::new(py, &chunk))
    }
}

/// What an insert found and left.
#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Insert {
    pub prefix_length: usize,
    pub node: u64,
    pub duplicates: Vec<(usize, usize)>,
}

/// What an admitted request starts from.
#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Admission {
    pub length: usize,
    pub node: u64,
    pub receipt: u64,
}

/// What a request has in the tree after a checkpoint.
#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Checkpoint {
    pub length: usize,
    pub prefix_length: usize,
    pub node: u64,
    pub receipt: u64,
    pub freed: Py<PyBytes>,
}

/// What changed since the previous drain.
#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Deltas {
    pub events: Py<PyBytes>,
    pub stored: u64,
    pub removed: u64,
    pub count: u64,
    pub digest: u64,
}

/// Sizes of a tree.
#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct TreeStats {
    pub nodes: usize,
    pub tokens: usize,
    pub evictable: usize,
    pub protected: usize,
    pub locks: usize,
    pub evicted_total: u64,
}

/// As pairs of i32 in native byte order.
pub(super) fn range_bytes<'py>(py: Python<'py>, slots: &SlotRanges) -> Bound<'py, PyBytes> {
    PyBytes::new(py, slots.words().as_bytes())
}
