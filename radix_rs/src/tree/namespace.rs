//! Namespaces: what makes equal tokens mean different keys and values.

use std::sync::Arc;

use hashbrown::{Equivalent, HashMap};

/// The pair of a namespace. Empty means absent, so the default is the namespace of plain prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace<'a> {
    /// Such as an adapter's name.
    pub extra_key: &'a str,
    /// A tenant's secret.
    pub cache_salt: &'a str,
}

/// Hashes as [`Namespace`] does.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Owned {
    extra_key: String,
    cache_salt: String,
}

impl Equivalent<Arc<Owned>> for Namespace<'_> {
    fn equivalent(&self, key: &Arc<Owned>) -> bool {
        self.extra_key == key.extra_key && self.cache_salt == key.cache_salt
    }
}

/// The namespaces that hold something, each with a root of its own. The default one is not listed: it has
/// the tree's root.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    roots: HashMap<Arc<Owned>, u32>,
    names: HashMap<u32, Arc<Owned>>,
}

impl Namespaces {
    pub fn root(&self, namespace: Namespace<'_>) -> Option<u32> {
        self.roots.get(&namespace).copied()
    }

    pub fn add(&mut self, namespace: Namespace<'_>, root: u32) {
        let owned = Arc::new(Owned {
            extra_key: namespace.extra_key.to_owned(),
            cache_salt: namespace.cache_salt.to_owned(),
        });
        self.roots.insert(Arc::clone(&owned), root);
        self.names.insert(root, owned);
    }

    /// Forget the namespace of `root`, whether it is listed or not.
    pub fn remove(&mut self, root: u32) -> bool {
        let owned = self.names.remove(&root);
        owned.is_some_and(|owned| self.roots.remove(&owned).is_some())
    }

    pub fn clear(&mut self) {
        self.roots.clear();
        self.names.clear();
    }

    pub fn len(&self) -> usize {
        self.roots.len()
    }

    pub fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        self.roots.values().copied()
    }

    /// Every listed namespace with its root, in the order of their names.
    pub fn sorted(&self) -> Vec<(Namespace<'_>, u32)> {
        let mut all: Vec<_> = self
            .roots
            .iter()
            .map(|(owned, &root)| {
                let namespace = Namespace {
                    extra_key: &owned.extra_key,
                    cache_salt: &owned.cache_salt,
                };
                (namespace, root)
            })
            .collect();
        all.sort_by_key(|(namespace, _)| (namespace.extra_key, namespace.cache_salt));
        all
    }
}
