//! Storing what a request computed.

use std::ops::Range;

use super::key::Run;
use super::namespace::Namespace;
use super::node::Node;
use super::{Tree, TreeError};
use crate::chain;

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

impl Tree {
    /// Store the whole pages of `tokens` under `slots`, one for each token.
    ///
    /// What the tree held before keeps its slots. Positions below `owned_from` are the tree's already;
    /// the rest of what it held are `duplicates`. A key that ends inside an edge splits it there.
    /// `counted_to`: nodes that end at or before it do not count this request as a hit again.
    ///
    /// # Errors
    /// [`TreeError::SlotsTooShort`], [`TreeError::KeyTooLong`]; [`TreeError::NotHeld`] if the tree does not
    /// hold the key up to `owned_from`. Nothing is changed then.
    pub fn insert(
        &mut self,
        tokens: &[u32],
        slots: &[i32],
        owned_from: usize,
        counted_to: usize,
        namespace: Namespace<'_>,
    ) -> Result<Insert, TreeError> {
        if slots.len() < tokens.len() {
            return Err(TreeError::SlotsTooShort {
                tokens: tokens.len(),
                slots: slots.len(),
            });
        }
        let tokens = self.whole_pages(tokens)?;
        let place = self.locate(tokens, namespace);
        let held = place.as_ref().map_or(0, |place| place.matched);
        if owned_from.min(tokens.len()) > held {
            return Err(TreeError::NotHeld { owned_from, held });
        }

        let (mut end, mut depth) = match &place {
            Some(place) => (self.settle(place), place.depth),
            None => (self.root, 0),
        };
        if held < tokens.len() {
            let parent = match &place {
                Some(_) => end,
                None => self.root_or_new(namespace),
            };
            end = self.add_leaf(parent, held, tokens, slots, namespace);
            depth += 1;
        }
        self.touch(end, depth);
        self.count_hits(end, counted_to);
        Ok(Insert {
            prefix_length: held,
            node: self.nodes.handle(end),
            duplicates: owned_from.min(held)..held,
        })
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
        let before = self.last_hash(parent);
        let seed = before.unwrap_or_else(|| self.seed(namespace));
        // The first block that ends in the leaf may begin above it.
        let block_start = start - start % self.block_size;
        let mut hashes = Vec::with_capacity((tokens.len() - block_start) / self.block_size);
        chain::extend_chain(
            &self.hash_key,
            seed,
            &tokens[block_start..],
            self.block_size,
            &mut hashes,
        );
        self.blocks.store(before, &hashes);

        let above = &self.nodes[parent];
        if above.is_evictable() {
            self.evictable.remove(&(above.last_used, parent));
        }
        let run = Run::new(&tokens[start..], &slots[start..], &hashes);
        let leaf = self.nodes.add(Node::leaf(run, start), parent);
        self.evictable_tokens += tokens.len() - start;
        leaf
    }

    /// One more request reached the nodes from `node` up that end past `counted_to`.
    fn count_hits(&mut self, node: u32, counted_to: usize) {
        let mut index = node;
        while self.nodes[index].end() > counted_to {
            let node = &mut self.nodes[index];
            node.hit_count = node.hit_count.saturating_add(1);
            index = node.parent;
        }
    }
}
