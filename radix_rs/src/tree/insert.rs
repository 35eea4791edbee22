//! Storing what a request computed.

use super::edge::Edge;
use super::length::to_u32;
use super::matching::Place;
use super::namespace::Namespace;
use super::node::Node;
use super::{Tree, TreeError};
use std::ops::Range;

/// What a request says of the key it inserts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Below this position the slots are the tree's already, from a match or an earlier insert.
    pub owned_from: usize,
    /// Nodes that end at or before this position do not count the request as a hit again.
    pub counted_to: usize,
    /// Passed on to every node of the path that has a smaller one.
    pub priority: i64,
}

/// What an insert found and left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insert {
    /// Tokens of the key that the tree held before.
    pub prefix_length: usize,
    /// Handle of the node the key ends at.
    pub node: u64,
    /// Positions whose slots the tree did not take: the caller still owns and must free them. May be empty.
    pub duplicates: Range<usize>,
}

/// An insert as the tree sees it.
pub(super) struct Inserted {
    pub held: usize,
    /// The node the key ends at.
    pub end: u32,
    /// Nodes from the root to it.
    pub depth: u64,
}

impl Tree {
    /// Store the whole pages of `tokens` under `slots`, one for each token.
    ///
    /// What the tree held before keeps its slots; of those, the positions from `owned_from` on are the
    /// `duplicates`. A key that ends inside an edge splits it there.
    ///
    /// # Errors
    /// [`TreeError::SlotsTooShort`], [`TreeError::KeyTooLong`]; [`TreeError::NotHeld`] if the tree does not
    /// hold the key up to `owned_from`. Nothing is changed then.
    pub fn insert(
        &mut self,
        tokens: &[u32],
        slots: &[i32],
        claim: Claim,
        namespace: Namespace<'_>,
    ) -> Result<Insert, TreeError> {
        let place = self.locate(self.whole_pages(tokens)?, namespace);
        let done = self.insert_at(place.as_ref(), tokens, slots, claim, namespace)?;
        Ok(Insert {
            prefix_length: done.held,
            node: self.nodes.handle(done.end),
            duplicates: claim.owned_from.min(done.held)..done.held,
        })
    }

    /// [`Tree::insert`], once it is known where a walk for the key ends.
    pub(super) fn insert_at(
        &mut self,
        place: Option<&Place>,
        tokens: &[u32],
        slots: &[i32],
        claim: Claim,
        namespace: Namespace<'_>,
    ) -> Result<Inserted, TreeError> {
        if slots.len() < tokens.len() {
            return Err(TreeError::SlotsTooShort {
                tokens: tokens.len(),
                slots: slots.len(),
            });
        }
        let tokens = self.whole_pages(tokens)?;
        let held = place.map_or(0, |place| place.matched);
        let owned_from = claim.owned_from;
        if owned_from.min(tokens.len()) > held {
            return Err(TreeError::NotHeld { owned_from, held });
        }

        let mark = |node: &mut Node| {
            if node.end() > claim.counted_to {
                node.hit_count = node.hit_count.saturating_add(1);
            }
            node.priority = node.priority.max(claim.priority);
            node.history = node.history.max(to_u32(tokens.len()));
        };
        let (mut end, mut depth) = match place {
            Some(place) => (self.settle(place), place.depth),
            None => (self.root, 0),
        };
        if held < tokens.len() {
            let parent = match place {
                Some(_) => end,
                None => self.root_or_new(namespace),
            };
            self.evictable.remove(&self.nodes, parent);
            end = self.add_leaf(parent, held, tokens, slots, namespace);
            depth += 1;
            self.stamp(end, depth, mark);
            self.nodes[end].created = self.clock;
            self.evictable.insert(&self.nodes, end);
        } else {
            self.touch(end, depth, mark);
        }
        Ok(Inserted { held, end, depth })
    }

    /// A new leaf under `parent` for the tokens from `start` on.
    fn add_leaf(
        &mut self,
        parent: u32,
        start: usize,
        tokens: &[u32],
        slots: &[i32],
        namespace: Namespace<'_>,
    ) -> u32 {
        // The first block that ends in the leaf may begin above it.
        let first = start / self.block_size;
        let (before, hashes) = self.hash_blocks(parent, first, tokens, namespace);
        self.blocks.store(before, &hashes);

        let edge = Edge::new(&tokens[start..], &slots[start..], &hashes);
        let leaf = self.nodes.add(Node::leaf(edge, start), parent);
        self.evictable_tokens += tokens.len() - start;
        leaf
    }
}
