//! The Python face of the tree.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::arguments::{Natural, Priority, claim, parse_key, parse_policy, room_for};
use super::buffer::Items;
use super::tree_answers::{
    Admission, Checkpoint, Deltas, Insert, Match, Snapshot, TreeError, TreeStats, range_bytes,
};
use crate::delta::{Event, encode_events};
use crate::tree::{self, Namespace};

/// A replica's radix tree. The manual is `_native.pyi`.
#[pyclass(module = "radix_rs")]
struct Tree {
    tree: tree::Tree,
}

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
        let policy = parse_policy(policy, policy_options)?;
        let tree = tree::Tree::new(page_size.length(), block_size.length(), key, model, policy)?;
        Ok(Self {
            tree: if disabled { tree.disabled() } else { tree },
        })
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
        let tree = &mut self.tree;
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
        let found = tokens.read(py, |tokens| self.tree.match_prefix(tokens, namespace))?;
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
        Ok(tokens.read(py, |tokens| self.tree.peek(tokens, namespace))?)
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
        let found = tokens.read(py, |tokens| self.tree.find(tokens, since, namespace))?;
        Ok(Match {
            length: found.length,
            node: found.node,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "Python calls it with keywords")]
    #[pyo3(signature = (
        id, tokens, *, node = Natural(0), length = Natural(0), extra_key = "", cache_salt = ""
    ))]
    fn expected<'py>(
        &self,
        py: Python<'py>,
        id: Natural,
        tokens: &Bound<'_, PyAny>,
        node: Natural,
        length: Natural,
        extra_key: &str,
        cache_salt: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tokens = Items::<u32>::get("tokens", tokens).map_err(TreeError::new_err)?;
        let namespace = Namespace {
            extra_key,
            cache_salt,
        };
        let since = tree::Match {
            length: length.length(),
            node: node.0,
        };
        let expected = tokens.read(py, |tokens| {
            self.tree.expected(id.0, tokens, since, namespace)
        })?;
        let events = expected.map(Event::Expected).into_iter().collect();
        Ok(PyBytes::new(py, &encode_events(events)))
    }

    fn parent(&self, node: Natural) -> PyResult<Option<u64>> {
        Ok(self.tree.parent(node.0)?)
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
        let tree = &mut self.tree;
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
        Ok(self.tree.lock(node.0)?)
    }

    fn unlock(&mut self, receipt: Natural) -> PyResult<()> {
        Ok(self.tree.unlock(receipt.0)?)
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
        let tree = &mut self.tree;
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
        let tree = &mut self.tree;
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
            freed: range_bytes(py, &done.freed).unbind(),
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
        let tree = &mut self.tree;
        let freed = tokens.read_with(&slots, py, |tokens, slots| {
            tree.finish(tokens, slots, prompt_length, receipt, claim, namespace)
        })?;
        Ok(range_bytes(py, &freed))
    }

    fn evict<'py>(&mut self, py: Python<'py>, num_tokens: Natural) -> Bound<'py, PyBytes> {
        range_bytes(py, &self.tree.evict(num_tokens.length()))
    }

    fn reset<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(range_bytes(py, &self.tree.reset()?))
    }

    fn drain_deltas(&mut self, py: Python<'_>) -> Option<Deltas> {
        self.tree.drain_deltas().map(|deltas| Deltas {
            events: PyBytes::new(py, &encode_events(deltas.events)).unbind(),
            stored: deltas.stored,
            removed: deltas.removed,
            count: deltas.count,
            digest: deltas.digest,
        })
    }

    #[pyo3(signature = (max_blocks = Natural(65536)))]
    fn snapshot(&self, max_blocks: Natural) -> PyResult<Snapshot> {
        let chunks = self.tree.snapshot(max_blocks.length())?;
        Ok(Snapshot { chunks })
    }

    fn count_digest(&self) -> (u64, u64) {
        self.tree.count_digest()
    }

    fn stats(&self) -> TreeStats {
        let stats = self.tree.stats();
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
        self.tree.dump()
    }

    fn check(&self) -> PyResult<()> {
        Ok(self.tree.check()?)
    }
}

impl Tree {
    /// Write the slots of the path to `node`, those of the positions from `since` on.
    fn gather(&self, py: Python<'_>, node: u64, out: &Items<i32>, since: usize) -> PyResult<()> {
        out.write(py, |out| {
            for (start, slots) in self.tree.path_slots(node, since)? {
                slots.write_to(&out[start..]);
            }
            Ok(())
        })
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TreeError", module.py().get_type::<TreeError>())?;
    module.add_class::<Match>()?;
    module.add_class::<Insert>()?;
    module.add_class::<Admission>()?;
    module.add_class::<Checkpoint>()?;
    module.add_class::<Deltas>()?;
    module.add_class::<TreeStats>()?;
    module.add_class::<Tree>()
}
