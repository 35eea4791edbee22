//! The Python face of the tree.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::buffer::Items;
use crate::chain::{self, HashKey};
use crate::delta::encode_events;
use crate::error;
use crate::tree::{self, Claim, EvictPolicy, Namespace};

create_exception!(radix_rs, TreeError, PyException);

impl From<error::TreeError> for PyErr {
    fn from(error: error::TreeError) -> Self {
        TreeError::new_err(error.to_string())
    }
}

/// A length, handle or receipt.
#[derive(Clone, Copy)]
struct Natural(u64);

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
    fn length(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// How much a request matters.
#[derive(Clone, Copy)]
struct Priority(i64);

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

/// What the tree has of a key.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct Match {
    length: usize,
    node: u64,
}

/// What an insert found and left.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct Insert {
    prefix_length: usize,
    node: u64,
    duplicates: Vec<(usize, usize)>,
}

/// What an admitted request starts from.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct Admission {
    length: usize,
    node: u64,
    receipt: u64,
}

/// What a request has in the tree after a checkpoint.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct Checkpoint {
    length: usize,
    prefix_length: usize,
    node: u64,
    receipt: u64,
    freed: Py<PyBytes>,
}

/// What changed since the previous drain.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct Deltas {
    events: Py<PyBytes>,
    stored: u64,
    removed: u64,
    count: u64,
    digest: u64,
}

/// Sizes of a tree.
#[pyclass(frozen, get_all, module = "radix_rs")]
struct TreeStats {
    nodes: usize,
    tokens: usize,
    evictable: usize,
    protected: usize,
    locks: usize,
    evicted_total: u64,
}

/// A replica's radix tree. The manual is `_native.pyi`.
#[pyclass(module = "radix_rs")]
struct Tree(tree::Tree);

#[pymethods]
impl Tree {
    #[new]
    #[pyo3(signature = (
        *, page_size = Natural(1), block_size = Natural(16), hash_key, model, policy = "lru",
        policy_options = None, disabled = false
    ))]
    fn new(
        page_size: Natural,
        block_size: Natural,
        hash_key: &[u8],
        model: &str,
        policy: &str,
        policy_options: Option<&Bound<'_, PyDict>>,
        disabled: bool,
    ) -> PyResult<Self> {
        let key = parse_key(hash_key)?;
        let tree = tree::Tree::new(page_size.length(), block_size.length(), key, model)?
            .with_policy(parse_policy(policy, policy_options)?);
        Ok(Self(if disabled { tree.disabled() } else { tree }))
    }

    #[pyo3(signature = (tokens, slots_out = None, *, extra_key = "", cache_salt = ""))]
    fn match_prefix(
        &mut self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        slots_out: Option<&Bound<'_, PyAny>>,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Match> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let out = slots_out.map(|out| room_for(&tokens, out)).transpose()?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let tree = &mut self.0;
        let found = tokens.read(py, |tokens| tree.match_prefix(tokens, namespace))?;
        if let Some(out) = out {
            self.gather(py, found.node, &out, 0)?;
        }
        Ok(Match {
            length: found.length,
            node: found.node,
        })
    }

    #[pyo3(signature = (tokens, *, extra_key = "", cache_salt = ""))]
    fn touch(
        &mut self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<usize> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let found = tokens.read(py, |tokens| self.0.match_prefix(tokens, namespace))?;
        Ok(found.length)
    }

    #[pyo3(signature = (tokens, *, extra_key = "", cache_salt = ""))]
    fn peek(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<usize> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        Ok(tokens.read(py, |tokens| self.0.peek(tokens, namespace))?)
    }

    #[pyo3(signature = (
        tokens, *, node = Natural(0), length = Natural(0), extra_key = "", cache_salt = ""
    ))]
    fn find(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        node: Natural,
        length: Natural,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Match> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let since = tree::Match {
            length: length.length(),
            node: node.0,
        };
        let found = tokens.read(py, |tokens| self.0.find(tokens, since, namespace))?;
        Ok(Match {
            length: found.length,
            node: found.node,
        })
    }

    fn parent(&self, node: Natural) -> PyResult<Option<u64>> {
        Ok(self.0.parent(node.0)?)
    }

    #[expect(clippy::too_many_arguments, reason = "Python calls it with keywords")]
    #[pyo3(signature = (
        tokens, slots, *, owned_from = Natural(0), counted_to = Natural(0), priority = Priority(0),
        extra_key = "", cache_salt = ""
    ))]
    fn insert(
        &mut self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        owned_from: Natural,
        counted_to: Natural,
        priority: Priority,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Insert> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let slots = Items::<i32>::get("slots", slots).map_err(TreeError::new_err)?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let claim = claim(owned_from, counted_to, priority);
        let tree = &mut self.0;
        let done = tokens.read_with(&slots, py, |tokens, slots| {
            tree.insert(tokens, slots, claim, namespace)
        })?;
        Ok(Insert {
            prefix_length: done.prefix_length,
            node: done.node,
            duplicates: Some((done.duplicates.start, done.duplicates.end))
                .filter(|(start, end)| start < end)
                .into_iter()
                .collect(),
        })
    }

    fn lock(&mut self, node: Natural) -> PyResult<u64> {
        Ok(self.0.lock(node.0)?)
    }

    fn unlock(&mut self, receipt: Natural) -> PyResult<()> {
        Ok(self.0.unlock(receipt.0)?)
    }

    #[pyo3(signature = (tokens, slots_out, *, receipt = None, extra_key = "", cache_salt = ""))]
    fn admit(
        &mut self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        slots_out: &Bound<'_, PyAny>,
        receipt: Option<Natural>,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Admission> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let out = room_for(&tokens, slots_out)?;
        let receipt = receipt.map(|receipt| receipt.0);
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let tree = &mut self.0;
        let admitted = tokens.read(py, |tokens| tree.admit(tokens, receipt, namespace))?;
        self.gather(py, admitted.node, &out, 0)?;
        Ok(Admission {
            length: admitted.length,
            node: admitted.node,
            receipt: admitted.receipt,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "Python calls it with keywords")]
    #[pyo3(signature = (
        tokens, slots, *, receipt, owned_from = Natural(0), counted_to = Natural(0),
        prompt_length = Natural(0), priority = Priority(0), extra_key = "", cache_salt = ""
    ))]
    fn checkpoint(
        &mut self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        receipt: Natural,
        owned_from: Natural,
        counted_to: Natural,
        prompt_length: Natural,
        priority: Priority,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Checkpoint> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let own = Items::<i32>::get_writable("slots", slots).map_err(TreeError::new_err)?;
        let claim = claim(owned_from, counted_to, priority);
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let (prompt_length, receipt) = (prompt_length.length(), receipt.0);
        let tree = &mut self.0;
        let done = tokens.read_with(&own, py, |tokens, slots| {
            tree.checkpoint(tokens, slots, prompt_length, receipt, claim, namespace)
        })?;
        if !done.freed.is_empty() {
            self.gather(py, done.node, &own, claim.owned_from)?;
        }
        Ok(Checkpoint {
            length: done.length,
            prefix_length: done.prefix_length,
            node: done.node,
            receipt: done.receipt,
            freed: slot_bytes(py, &done.freed)?.unbind(),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "Python calls it with keywords")]
    #[pyo3(signature = (
        tokens, slots, *, receipt, owned_from = Natural(0), counted_to = Natural(0),
        prompt_length = Natural(0), priority = Priority(0), extra_key = "", cache_salt = ""
    ))]
    fn finish<'py>(
        &mut self,
        py: Python<'py>,
        tokens: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        receipt: Natural,
        owned_from: Natural,
        counted_to: Natural,
        prompt_length: Natural,
        priority: Priority,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let slots = Items::<i32>::get("slots", slots).map_err(TreeError::new_err)?;
        let claim = claim(owned_from, counted_to, priority);
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let (prompt_length, receipt) = (prompt_length.length(), receipt.0);
        let tree = &mut self.0;
        let freed = tokens.read_with(&slots, py, |tokens, slots| {
            tree.finish(tokens, slots, prompt_length, receipt, claim, namespace)
        })?;
        slot_bytes(py, &freed)
    }

    fn evict<'py>(
        &mut self,
        py: Python<'py>,
        num_tokens: Natural,
    ) -> PyResult<Bound<'py, PyBytes>> {
        slot_bytes(py, &self.0.evict(num_tokens.length()))
    }

    fn reset<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        slot_bytes(py, &self.0.reset()?)
    }

    fn drain_deltas(&mut self, py: Python<'_>) -> Option<Deltas> {
        self.0.drain_deltas().map(|deltas| Deltas {
            events: PyBytes::new(py, &encode_events(deltas.events)).unbind(),
            stored: deltas.stored,
            removed: deltas.removed,
            count: deltas.count,
            digest: deltas.digest,
        })
    }

    #[pyo3(signature = (max_blocks = Natural(65536)))]
    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        max_blocks: Natural,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let chunks = self.0.snapshot(max_blocks.length())?;
        Ok(chunks
            .into_iter()
            .map(|events| PyBytes::new(py, &encode_events(events)))
            .collect())
    }

    fn count_digest(&self) -> (u64, u64) {
        self.0.count_digest()
    }

    fn stats(&self) -> TreeStats {
        let stats = self.0.stats();
        TreeStats {
            nodes: stats.nodes,
            tokens: stats.tokens,
            evictable: stats.evictable,
            protected: stats.protected,
            locks: stats.locks,
            evicted_total: stats.evicted_total,
        }
    }

    fn dump(&self) -> String {
        self.0.dump()
    }

    fn check(&self) -> PyResult<()> {
        Ok(self.0.check()?)
    }
}

impl Tree {
    /// Write the slots of the path to `node`, those of the positions from `since` on.
    fn gather(&self, py: Python<'_>, node: u64, out: &Items<i32>, since: usize) -> PyResult<()> {
        out.write(py, |out| {
            for (start, slots) in self.0.path_slots(node, since)? {
                for (cell, slot) in out[start..].iter().zip(slots) {
                    cell.set(slot);
                }
            }
            Ok(())
        })
    }
}

/// A buffer that takes a slot for every token.
fn room_for(tokens: &Items<u32>, slots_out: &Bound<'_, PyAny>) -> PyResult<Items<i32>> {
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

fn claim(owned_from: Natural, counted_to: Natural, priority: Priority) -> Claim {
    Claim {
        owned_from: owned_from.length(),
        counted_to: counted_to.length(),
        priority: priority.0,
    }
}

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

fn parse_key(hash_key: &[u8]) -> PyResult<HashKey> {
    <[u8; 16]>::try_from(hash_key)
        .map(HashKey::new)
        .map_err(|_| {
            TreeError::new_err(format!(
                "hash_key: expected 16 bytes, got {}",
                hash_key.len()
            ))
        })
}

fn parse_policy(name: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<EvictPolicy> {
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

/// As i32 in native byte order.
fn slot_bytes<'py>(py: Python<'py>, slots: &[i32]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(slots), |bytes| {
        for (bytes, slot) in bytes.chunks_exact_mut(size_of::<i32>()).zip(slots) {
            bytes.copy_from_slice(&slot.to_ne_bytes());
        }
        Ok(())
    })
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TreeError", module.py().get_type::<TreeError>())?;
    module.add_class::<Match>()?;
    module.add_class::<Insert>()?;
    module.add_class::<Admission>()?;
    module.add_class::<Checkpoint>()?;
    module.add_class::<Deltas>()?;
    module.add_class::<TreeStats>()?;
    module.add_class::<Tree>()?;
    module.add_function(wrap_pyfunction!(derive_hash_key, module)?)?;
    module.add_function(wrap_pyfunction!(key_check, module)?)?;
    module.add_function(wrap_pyfunction!(chain_hashes, module)?)
}
