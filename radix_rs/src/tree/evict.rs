//! Making room: which leaf goes, and what goes with it.

use std::collections::BTreeSet;

use super::node::Node;
use super::nodes::Nodes;
use super::ranges::SlotRanges;
use super::{Tree, TreeError};

/// Which unlocked leaf goes first: the one with the smallest key. Ticks are logical, never wall clock.
///
/// No two leaves have the same key, since each tick is given once. Only the parts of a split share one, that
/// of their making; they lie on one path, so at most one of them is a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictPolicy {
    /// Least recently used.
    #[default]
    Lru,
    /// Fewest hits, of those the least recently used.
    Lfu,
    /// Segmented: nodes with fewer than `threshold` hits before all others, each least recently used first.
    Slru {
        /// Hits from which on a node is protected.
        threshold: u64,
    },
    /// Lowest priority, of those the least recently used.
    Priority,
    /// Tails first: what the next prompt of a conversation can do without goes before all else, each least
    /// recently used first. That prompt is expected to be `next_prompt_estimate` tokens longer than the
    /// longest key so far, and may have `threshold` tokens to compute.
    Tlru {
        /// Tokens that the next prompt may have to compute.
        threshold: u64,
        /// Tokens by which it is longer than the longest so far.
        next_prompt_estimate: u64,
    },
    /// First made.
    Fifo,
    /// Most recently used.
    Mru,
    /// Last made.
    Filo,
}

/// A class, then a tick within it.
type Key = (i64, u64);

impl EvictPolicy {
    /// The policy of that name, with these options and the defaults of the others.
    ///
    /// # Errors
    /// [`TreeError::UnknownPolicy`], [`TreeError::UnknownPolicyOption`].
    pub fn new(name: &str, options: &[(&str, u64)]) -> Result<Self, TreeError> {
        let mut policy = match name {
            "lru" => Self::Lru,
            "lfu" => Self::Lfu,
            "slru" => Self::Slru { threshold: 2 },
            "priority" => Self::Priority,
            "tlru" => Self::Tlru {
                threshold: 0,
                next_prompt_estimate: 0,
            },
            "fifo" => Self::Fifo,
            "mru" => Self::Mru,
            "filo" => Self::Filo,
            _ => return Err(TreeError::UnknownPolicy(name.to_owned())),
        };
        for &(option, value) in options {
            match (&mut policy, option) {
                (Self::Slru { threshold } | Self::Tlru { threshold, .. }, "threshold") => {
                    *threshold = value;
                }
                (
                    Self::Tlru {
                        next_prompt_estimate,
                        ..
                    },
                    "next_prompt_estimate",
                ) => *next_prompt_estimate = value,
                _ => {
                    return Err(TreeError::UnknownPolicyOption {
                        policy: name.to_owned(),
                        option: option.to_owned(),
                        known: policy.options(),
                    });
                }
            }
        }
        Ok(policy)
    }

    fn options(self) -> &'static str {
        match self {
            Self::Slru { .. } => "threshold",
            Self::Tlru { .. } => "threshold, next_prompt_estimate",
            _ => "none",
        }
    }

    fn key(self, node: &Node) -> Key {
        match self {
            Self::Lru => (0, node.last_used),
            Self::Lfu => (i64::from(node.hit_count), node.last_used),
            Self::Slru { threshold } => {
                let protected = u64::from(node.hit_count) >= threshold;
                (i64::from(protected), node.last_used)
            }
            Self::Priority => (node.priority, node.last_used),
            Self::Tlru {
                threshold,
                next_prompt_estimate,
            } => {
                let next_prompt = u128::from(node.history) + u128::from(next_prompt_estimate);
                let needed = (node.start() as u128) < next_prompt.saturating_sub(threshold.into());
                (i64::from(needed), node.last_used)
            }
            Self::Fifo => (0, node.created),
            Self::Mru => (0, !node.last_used),
            Self::Filo => (0, !node.created),
        }
    }
}

/// The evictable nodes in the order of a policy. A node is taken out before anything of it changes that its
/// key depends on, and put back after.
#[derive(Debug, Default)]
pub(super) struct Evictable {
    policy: EvictPolicy,
    entries: BTreeSet<(Key, u32)>,
}

impl Evictable {
    pub fn new(policy: EvictPolicy) -> Self {
        Self {
            policy,
            entries: BTreeSet::new(),
        }
    }

    /// Put the node in its place, if it is evictable.
    pub fn insert(&mut self, nodes: &Nodes, index: u32) {
        let node = &nodes[index];
        if node.is_evictable() {
            self.entries.insert(self.entry(index, node));
        }
    }

    /// Take the node out, if it is evictable.
    pub fn remove(&mut self, nodes: &Nodes, index: u32) {
        let node = &nodes[index];
        if node.is_evictable() {
            self.entries.remove(&self.entry(index, node));
        }
    }

    /// Take out the one that goes first.
    fn pop(&mut self) -> Option<u32> {
        self.entries.pop_first().map(|(_, index)| index)
    }

    fn clear(&mut self) {
        self.entries.clear();
    }

    pub fn entry(&self, index: u32, node: &Node) -> (Key, u32) {
        (self.policy.key(node), index)
    }

    pub fn entries(&self) -> &BTreeSet<(Key, u32)> {
        &self.entries
    }
}

impl Tree {
    /// Evict unlocked leaves in the order of the policy until `num_tokens` are freed or none is left.
    ///
    /// A leaf goes as a whole, so the last one may free more than asked. Once its last child is gone, a
    /// parent competes at the place its own key gives it. Returns the slots, victim after victim.
    pub fn evict(&mut self, num_tokens: usize) -> SlotRanges {
        let mut freed = SlotRanges::default();
        let before = self.evictable_tokens;
        let enough = before.saturating_sub(num_tokens);
        while self.evictable_tokens > enough {
            let Some(leaf) = self.evictable.pop() else {
                break;
            };
            self.remove_leaf(leaf, &mut freed);
        }
        self.evicted_total += (before - self.evictable_tokens) as u64;
        freed
    }

    /// Drop everything. Handles from before are stale. Returns all slots.
    ///
    /// # Errors
    /// [`TreeError::Locked`] while a receipt is live.
    pub fn reset(&mut self) -> Result<SlotRanges, TreeError> {
        if self.receipts.len() > 0 {
            return Err(TreeError::Locked {
                locks: self.receipts.len(),
            });
        }
        let mut slots = SlotRanges::default();
        for (_, node) in self.nodes.iter() {
            node.give_back_slots(&mut slots);
        }
        self.nodes.clear();
        self.namespaces.clear();
        self.evictable.clear();
        self.evictable_tokens = 0;
        self.blocks.clear();
        self.root = self.nodes.add_root();
        Ok(slots)
    }

    fn remove_leaf(&mut self, leaf: u32, freed: &mut SlotRanges) {
        let before = self.last_hash(self.nodes[leaf].parent);
        let node = self.nodes.remove(leaf);
        node.give_back_slots(freed);
        self.blocks.remove(before, node.hashes(self.block_size));
        self.evictable_tokens -= node.len();

        let parent = node.parent;
        let begins_edge = node.range().start == 0;
        drop(node);
        if !begins_edge {
            self.shrink_edge(parent);
        }
        self.evictable.insert(&self.nodes, parent);
        let above = &self.nodes[parent];
        if above.is_root() && above.num_children == 0 && self.namespaces.remove(parent) {
            self.nodes.remove_root(parent);
        }
    }

    /// Copy what is left of an edge to a smaller one once more than a quarter of it is gone. `last` is its
    /// last piece; the others are its ancestors. Each evicted token pays for at most three copied ones.
    fn shrink_edge(&mut self, last: u32) {
        let node = &self.nodes[last];
        let live = node.range().end;
        let dead = node.edge.len() - live;
        if dead * 4 <= node.edge.len() {
            return;
        }
        let hashes = node.end() / self.block_size - (node.end() - live) / self.block_size;
        let old = node.edge.clone();
        let new = old.prefix(live, hashes);
        let mut index = last;
        while self.nodes[index].edge.is(&old) {
            self.nodes[index].edge = new.clone();
            index = self.nodes[index].parent;
        }
    }
}
