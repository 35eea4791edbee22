//! What the tree will hold once a prompt is computed, for those who choose where the next one goes.

use super::length::to_u32;
use super::matching::Match;
use super::namespace::Namespace;
use super::{Tree, TreeError};
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
        let node = place.map_or(self.root, |place| place.node);
        let (_, hashes) = self.hash_blocks(node, start, tokens, namespace);
        Ok((!hashes.is_empty()).then(|| Expected {
            id,
            start: to_u32(start),
            hashes,
        }))
    }
}
