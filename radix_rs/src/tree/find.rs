//! What a scheduler asks of requests that wait, without using anything: how much of each is cached, and
//! which of them belong together.

use super::common_prefix::common_prefix;
use super::matching::{Match, Place};
use super::namespace::Namespace;
use super::{Tree, TreeError};

impl Tree {
    /// The length [`Tree::match_prefix`] would return, and the node it lies in, not always at its end.
    /// Changes nothing.
    ///
    /// `since`: what this, an admission or a checkpoint returned for the key before, or for a beginning of
    /// it. Only what follows is compared, so that the call costs as much as has changed; all of it if that
    /// node is gone.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLong`].
    pub fn find(
        &self,
        tokens: &[u32],
        since: Match,
        namespace: Namespace<'_>,
    ) -> Result<Match, TreeError> {
        let tokens = self.whole_pages(tokens)?;
        Ok(match self.place(tokens, since, namespace) {
            Some(place) => Match {
                length: place.matched,
                node: self.nodes.handle(place.node),
            },
            None => Match {
                length: 0,
                node: self.nodes.handle(self.root),
            },
        })
    }

    /// Where a walk for this key ends, going on from `since` if that can be.
    pub(super) fn place(
        &self,
        tokens: &[u32],
        since: Match,
        namespace: Namespace<'_>,
    ) -> Option<Place> {
        match self.resume(tokens, since) {
            Some(place) => Some(self.walk(tokens, place)),
            None => self.locate(tokens, namespace),
        }
    }

    /// The handle of the node above `node`, `None` above a root.
    ///
    /// # Errors
    /// [`TreeError::UnknownNode`].
    pub fn parent(&self, node: u64) -> Result<Option<u64>, TreeError> {
        let node = &self.nodes[self.resolve(node)?];
        Ok((!node.is_root()).then(|| self.nodes.handle(node.parent)))
    }

    /// Where a walk for this key stands by now that ended at `since`, in the same edge.
    ///
    /// The node keeps its end; a split may have cut its beginning off. The key may have ended there.
    fn resume(&self, tokens: &[u32], since: Match) -> Option<Place> {
        let mut node = self.nodes.resolve(since.node)?;
        let possible = 1..=self.nodes[node].end().min(tokens.len());
        if !possible.contains(&since.length) || !since.length.is_multiple_of(self.page_size) {
            return None;
        }
        while self.nodes[node].start() >= since.length {
            node = self.nodes[node].parent;
        }
        let within = since.length - self.nodes[node].start();
        let common = common_prefix(
            &self.nodes[node].tokens()[within..],
            &tokens[since.length..],
        );
        let more = common - common % self.page_size;
        Some(Place {
            node,
            within: within + more,
            matched: since.length + more,
            depth: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::HashKey;
    use crate::tree::{Claim, EvictPolicy};

    const PLAIN: Namespace<'_> = Namespace {
        extra_key: "",
        cache_salt: "",
    };
    const NOWHERE: Match = Match { length: 0, node: 0 };

    fn holding(tokens: &[u32]) -> (Tree, u64) {
        let mut tree = Tree::new(1, 4, HashKey::new([0; 16]), "m", EvictPolicy::Lru).unwrap();
        let slots: Vec<i32> = (0..).take(tokens.len()).collect();
        let stored = tree.insert(tokens, &slots, Claim::default(), PLAIN);
        (tree, stored.unwrap().node)
    }

    #[test]
    fn a_split_in_between_moves_the_place_to_the_upper_part() {
        let (mut tree, whole) = holding(&[1, 2, 3, 4]);
        let key = [1, 2, 9];
        let found = tree.find(&key, NOWHERE, PLAIN).unwrap();
        assert_eq!((found.length, found.node), (2, whole));
        let upper = tree.match_prefix(&key, PLAIN).unwrap().node;
        let again = tree.find(&key, found, PLAIN).unwrap();
        assert_eq!((again.length, again.node), (2, upper));
        assert_eq!(tree.parent(whole), Ok(Some(upper)));
    }

    #[test]
    fn a_place_that_is_gone_or_cannot_have_been_is_looked_for_anew() {
        let (mut tree, whole) = holding(&[1, 2, 3, 4]);
        for length in [0, 5, usize::MAX] {
            let since = Match {
                length,
                node: whole,
            };
            assert_eq!(tree.find(&[1, 2, 9], since, PLAIN).unwrap().length, 2);
        }
        let found = tree.find(&[1, 2, 9], NOWHERE, PLAIN).unwrap();
        tree.evict(4);
        let root = tree.find(&[1, 2, 9], found, PLAIN).unwrap();
        assert_eq!(root.length, 0);
        assert_eq!(tree.parent(root.node), Ok(None));
        assert_eq!(tree.parent(whole), Err(TreeError::UnknownNode(whole)));
    }
}
