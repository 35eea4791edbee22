//! What the tree will hold once a prompt is computed, for those who choose where the next one goes.

use super::length::to_u32;
use super::matching::{Match, Place};
use super::namespace::Namespace;
use super::{Tree, TreeError};
use crate::chain;
use crate::delta::Expected;

impl Tree {
    /// The whole blocks of `tokens` that the tree does not hold, announced as `id`; `None` if there are none.
    /// Changes nothing.
    ///
    /// `since` is as for [`Tree::find`], and spares hashing what is held.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLong`].
    pub fn expected(
        &self,
        id: u64,
        tokens: &[u32],
        since: Match,
        namespace: Namespace<'_>,
    ) -> Result<Option<Expected>, TreeError> {
        let tokens = self.whole_pages(tokens)?;
        let place = self.place(tokens, since, namespace);
        let start = place.as_ref().map_or(0, |place| place.matched) / self.block_size;
        let before = place.and_then(|place| self.last_hash_at(&place));
        let mut hashes = Vec::with_capacity(tokens.len() / self.block_size - start);
        chain::extend_chain(
            &self.hash_key,
            before.unwrap_or_else(|| self.seed(namespace)),
            &tokens[start * self.block_size..],
            self.block_size,
            &mut hashes,
        );
        Ok((!hashes.is_empty()).then(|| Expected {
            id,
            start: to_u32(start),
            hashes,
        }))
    }

    /// Of the last block that ends at or before `place`.
    fn last_hash_at(&self, place: &Place) -> Option<u64> {
        let node = &self.nodes[place.node];
        if node.is_root() {
            return None;
        }
        let ended = place.matched / self.block_size - node.start() / self.block_size;
        match ended.checked_sub(1) {
            Some(last) => node.hashes(self.block_size).nth(last),
            None => self.last_hash(node.parent),
        }
    }
}
