//! A node: the end of an edge, and what is known of the edge.

use std::ops::Range;

use super::edge::Edge;
use super::length::to_u32;
use super::ranges::SlotRanges;
use super::slots::Slots;

/// The index of no node: the parent of a root, the end of a list of siblings.
pub(super) const NONE: u32 = u32::MAX;

/// A node owns `len` tokens of its edge, from `offset` on. Roots own none.
#[derive(Debug)]
pub(super) struct Node {
    pub edge: Edge,
    offset: u32,
    len: u32,
    /// Tokens from the root to the end of this node.
    pub end: u32,
    pub parent: u32,
    /// Of its parent and its first page, see [`super::nodes::Nodes`].
    pub page_hash: u32,
    pub num_children: u32,
    pub first_child: u32,
    pub next_sibling: u32,
    pub previous_sibling: u32,
    /// Live receipts whose path covers this node.
    pub lock_ref: u32,
    /// Requests whose insert reached this node.
    pub hit_count: u32,
    /// Tokens of the longest key inserted through this node, evicted since or not.
    pub history: u32,
    /// Greatest of the requests whose insert reached this node.
    pub priority: i64,
    /// Tick of the last access.
    pub last_used: u64,
    /// Tick of the insert that made it; both parts of a split keep it.
    pub created: u64,
}

impl Default for Node {
    /// A root.
    fn default() -> Self {
        Self {
            edge: Edge::default(),
            offset: 0,
            len: 0,
            end: 0,
            parent: NONE,
            page_hash: 0,
            num_children: 0,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            lock_ref: 0,
            hit_count: 0,
            history: 0,
            priority: i64::MIN,
            last_used: 0,
            created: 0,
        }
    }
}

impl Node {
    /// A node that owns all of `edge` and begins `start` tokens from the root.
    pub fn leaf(edge: Edge, start: usize) -> Self {
        let len = to_u32(edge.len());
        Self {
            edge,
            len,
            end: to_u32(start) + len,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn end(&self) -> usize {
        self.end as usize
    }

    pub fn start(&self) -> usize {
        (self.end - self.len) as usize
    }

    pub fn is_root(&self) -> bool {
        self.parent == NONE
    }

    /// Whether `evict` may take it.
    pub fn is_evictable(&self) -> bool {
        self.num_children == 0 && self.lock_ref == 0 && !self.is_root()
    }

    /// Its part of the edge.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }

    pub fn tokens(&self) -> &[u32] {
        self.edge.tokens(self.range())
    }

    pub fn slots(&self) -> impl Iterator<Item = i32> + Clone + '_ {
        self.edge.slots(self.range()).flat_map(|(_, row)| row)
    }

    /// Those at positions from `since` on, row by row, each with its position; positions are counted from
    /// the root.
    pub fn slots_since(&self, since: usize) -> impl Iterator<Item = (usize, Slots<'_>)> + '_ {
        let Range { start, end } = self.range();
        let from = start + since.saturating_sub(self.start());
        let before_edge = self.start() - start;
        self.edge
            .slots(from..end)
            .map(move |(at, row)| (before_edge + at, row))
    }

    pub fn give_back_slots(&self, freed: &mut SlotRanges) {
        for (_, row) in self.edge.slots(self.range()) {
            freed.push_slots(&row);
        }
    }

    /// Hashes of the blocks that end in this node.
    pub fn hashes(
        &self,
        block_size: usize,
    ) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        // Blocks are numbered from the root; the edge holds those that end in it.
        let before_edge = self.blocks_before_edge(block_size);
        self.edge
            .hashes(self.start() / block_size - before_edge..self.end() / block_size - before_edge)
    }

    /// Hash of the block numbered `block`, which ends in this node.
    pub fn hash(&self, block: usize, block_size: usize) -> u64 {
        self.edge.hash(block - self.blocks_before_edge(block_size))
    }

    fn blocks_before_edge(&self, block_size: usize) -> usize {
        (self.start() - self.offset as usize) / block_size
    }

    /// Split off the first `at` tokens as a node of its own, above this one.
    pub fn split_off_front(&mut self, at: usize) -> Self {
        let at = to_u32(at);
        debug_assert!(0 < at && at < self.len);
        let upper = Self {
            edge: self.edge.clone(),
            offset: self.offset,
            len: at,
            end: self.end - self.len + at,
            page_hash: self.page_hash,
            lock_ref: self.lock_ref,
            hit_count: self.hit_count,
            history: self.history,
            priority: self.priority,
            last_used: self.last_used,
            created: self.created,
            ..Self::default()
        };
        self.offset += at;
        self.len -= at;
        upper
    }
}
