//! The replica's tree: which prefixes are cached, in which slots, and what may go when room is needed.
//!
//! Pure bookkeeping over token ids and slot numbers, single threaded, no I/O, no clock. It follows the
//! radix cache of `SGLang` (`TreeCore` of 0.5) with full attention. In a few words, and where it decides
//! for itself:
//!
//! - **Keys** are cut to whole pages before anything else; a key shorter than a page matches nothing and
//!   stores nothing. Two siblings may share all but the last token of their first page.
//! - **Namespaces** are pairs (`extra_key`, `cache_salt`), empty meaning absent. Nothing is shared between
//!   two of them. A namespace is forgotten with its last node.
//! - **Recency** is counted in ticks of a logical clock. A match and an insert stamp every node of their
//!   path, a deeper one later than its parent. A **split** is no use of the part below it: that part keeps
//!   its tick. Each tick is given once, so the order of eviction has no ties.
//! - **Eviction** takes whole childless unlocked nodes, smallest key of the [`EvictPolicy`] first; the
//!   default, least recently used, has the tick as key. A parent joins at the place its own key gives it
//!   when its last child goes.
//! - **Locks** cover a path from a node to the root and are undone by receipt, not by node, so that splits
//!   in between do not matter. A stale receipt or handle is an error; neither value is ever used again,
//!   nor after a reset.
//! - **Blocks** are what deltas speak of: `block_size` tokens, named by the chain hash of the whole prefix.
//!   A block belongs to the node its last token is in; it is announced when that token is stored, withdrawn
//!   when it goes, and may begin in a node above. Matches, splits, locks and touches announce nothing.
//! - **Hits**: an insert counts one hit for each node of its path that ends past `counted_to`, so a request
//!   with several inserts counts once.
//!
//! Errors are found before anything is changed; the tree stays usable.

mod arena;
mod blocks;
mod check;
mod common_prefix;
mod edge;
mod evict;
mod expected;
mod find;
mod insert;
mod length;
mod lock;
mod matching;
mod namespace;
mod node;
mod nodes;
mod ranges;
mod request;
mod slots;
mod snapshot;
mod split;

use crate::chain::{self, HashKey};
use crate::error::TreeError;

pub use blocks::Deltas;
pub use evict::EvictPolicy;
pub use insert::{Claim, Insert};
pub use matching::Match;
pub use namespace::Namespace;
pub use ranges::SlotRanges;
pub use request::{Admission, Checkpoint};
pub use slots::Slots;
pub use snapshot::Snapshot;

use arena::Arena;
use blocks::BlockLog;
use evict::Evictable;
use namespace::Namespaces;
use nodes::Nodes;

/// See the [module](self).
pub struct Tree {
    page_size: usize,
    block_size: usize,
    hash_key: HashKey,
    model: String,
    disabled: bool,
    nodes: Nodes,
    /// Root of the default namespace, and the node of every empty match.
    root: u32,
    namespaces: Namespaces,
    /// The node each live receipt locks.
    receipts: Arena<u32>,
    /// Exactly the nodes for which [`node::Node::is_evictable`].
    evictable: Evictable,
    clock: u64,
    evictable_tokens: usize,
    protected_tokens: usize,
    evicted_total: u64,
    blocks: BlockLog,
}

/// Sizes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeStats {
    /// Nodes, roots apart.
    pub nodes: usize,
    /// Tokens on all nodes.
    pub tokens: usize,
    /// Tokens on nodes nobody locks.
    pub evictable: usize,
    /// Tokens on locked nodes.
    pub protected: usize,
    /// Live receipts.
    pub locks: usize,
    /// Tokens evicted since the tree was made; a reset evicts nothing.
    pub evicted_total: u64,
}

impl Tree {
    /// An empty tree of `model`, the first field of every namespace's seed, that evicts by `policy`.
    ///
    /// # Errors
    /// [`TreeError::Sizes`].
    pub fn new(
        page_size: usize,
        block_size: usize,
        hash_key: HashKey,
        model: &str,
        policy: EvictPolicy,
    ) -> Result<Self, TreeError> {
        let possible = 1..=u32::MAX as usize;
        if !possible.contains(&page_size)
            || !possible.contains(&block_size)
            || !block_size.is_multiple_of(page_size)
        {
            return Err(TreeError::Sizes {
                page_size,
                block_size,
            });
        }
        let mut nodes = Nodes::new(page_size);
        let root = nodes.add_root();
        Ok(Self {
            page_size,
            block_size,
            hash_key,
            model: model.to_owned(),
            disabled: false,
            nodes,
            root,
            namespaces: Namespaces::default(),
            receipts: Arena::default(),
            evictable: Evictable::new(policy),
            clock: 0,
            evictable_tokens: 0,
            protected_tokens: 0,
            evicted_total: 0,
            blocks: BlockLog::default(),
        })
    }

    /// The same tree without a memory: every key is empty to it, so it holds nothing and says nothing.
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.disabled = true;
        self
    }

    /// What changed since the last call, `None` if nothing did.
    pub fn drain_deltas(&mut self) -> Option<Deltas> {
        self.blocks.drain()
    }

    /// Blocks in the tree, drained or not, and their digest.
    pub fn count_digest(&self) -> (u64, u64) {
        (self.blocks.count, self.blocks.digest)
    }

    /// Sizes, all kept up to date: this costs nothing.
    pub fn stats(&self) -> TreeStats {
        TreeStats {
            nodes: self.nodes.len() - 1 - self.namespaces.len(),
            tokens: self.evictable_tokens + self.protected_tokens,
            evictable: self.evictable_tokens,
            protected: self.protected_tokens,
            locks: self.receipts.len(),
            evicted_total: self.evicted_total,
        }
    }

    fn whole_pages<'a>(&self, tokens: &'a [u32]) -> Result<&'a [u32], TreeError> {
        if u32::try_from(tokens.len()).is_err() {
            return Err(TreeError::KeyTooLong {
                tokens: tokens.len(),
            });
        }
        let whole = tokens.len() - tokens.len() % self.page_size;
        Ok(&tokens[..if self.disabled { 0 } else { whole }])
    }

    fn resolve(&self, node: u64) -> Result<u32, TreeError> {
        self.nodes.resolve(node).ok_or(TreeError::UnknownNode(node))
    }

    fn root_of(&self, namespace: Namespace<'_>) -> Option<u32> {
        if namespace == Namespace::default() {
            Some(self.root)
        } else {
            self.namespaces.root(namespace)
        }
    }

    fn root_or_new(&mut self, namespace: Namespace<'_>) -> u32 {
        self.root_of(namespace).unwrap_or_else(|| {
            let root = self.nodes.add_root();
            self.namespaces.add(namespace, root);
            root
        })
    }

    fn seed(&self, namespace: Namespace<'_>) -> u64 {
        chain::namespace_seed(
            &self.hash_key,
            &self.model,
            namespace.extra_key,
            namespace.cache_salt,
        )
    }

    /// Hash of the last block that ends at or before the end of `node`.
    fn last_hash(&self, node: u32) -> Option<u64> {
        let blocks = self.nodes[node].end() / self.block_size;
        blocks
            .checked_sub(1)
            .map(|last| self.hash_on_path(node, last))
    }

    /// Hash of the block numbered `block`, which ends on the path to `node`.
    fn hash_on_path(&self, node: u32, block: usize) -> u64 {
        let end = (block + 1) * self.block_size;
        let mut index = node;
        // A block, and a group of them, spans a bounded number of nodes: this ends soon.
        while self.nodes[index].start() >= end {
            index = self.nodes[index].parent;
        }
        let node = &self.nodes[index];
        node.hash(block, self.block_size)
    }

    /// The hash before the blocks of `tokens` from the one numbered `first` on, and theirs. All before those are
    /// on the path to `node`.
    fn hash_blocks(
        &self,
        node: u32,
        first: usize,
        tokens: &[u32],
        namespace: Namespace<'_>,
    ) -> (Option<u64>, Vec<u64>) {
        let of_group = first % chain::blocks_in_group(self.block_size);
        let group = first - of_group;
        let before_group = group
            .checked_sub(1)
            .map(|last| self.hash_on_path(node, last));
        let mut hashes = Vec::with_capacity(tokens.len() / self.block_size - group);
        chain::extend_chain(
            &self.hash_key,
            before_group.unwrap_or_else(|| self.seed(namespace)),
            &tokens[group * self.block_size..],
            self.block_size,
            &mut hashes,
        );
        // Those of the group that are known come again.
        let before = hashes.drain(..of_group).next_back().or(before_group);
        (before, hashes)
    }
}
