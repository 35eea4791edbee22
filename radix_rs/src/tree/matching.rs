//! Finding the longest cached prefix.

use super::common_prefix::common_prefix;
use super::namespace::Namespace;
use super::node::Node;
use super::slots::Slots;
use super::{Tree, TreeError};

/// What the tree has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Tokens cached, a whole number of pages.
    pub length: usize,
    /// Handle of the node that ends there.
    pub node: u64,
}

/// Where a walk ended: `within` tokens into the edge of `node`, `matched` tokens from the root.
#[derive(Debug)]
pub(super) struct Place {
    pub node: u32,
    pub within: usize,
    pub matched: usize,
    /// Nodes on the path, the root apart.
    pub depth: u64,
}

impl Tree {
    /// The longest cached whole-page prefix of `tokens`, as a node of its own.
    ///
    /// Makes the path the most recent, deeper nodes more so. May split a node; frees nothing.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLong`].
    pub fn match_prefix(
        &mut self,
        tokens: &[u32],
        namespace: Namespace<'_>,
    ) -> Result<Match, TreeError> {
        let (length, end) = self.match_key(tokens, namespace)?;
        Ok(Match {
            length,
            node: self.nodes.handle(end),
        })
    }

    pub(super) fn match_key(
        &mut self,
        tokens: &[u32],
        namespace: Namespace<'_>,
    ) -> Result<(usize, u32), TreeError> {
        let tokens = self.whole_pages(tokens)?;
        let Some(place) = self.locate(tokens, namespace) else {
            return Ok((0, self.root));
        };
        let end = self.settle(&place);
        self.touch(end, place.depth, |_| ());
        Ok((place.matched, end))
    }

    /// The length [`Tree::match_prefix`] would return. Changes nothing.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLong`].
    pub fn peek(&self, tokens: &[u32], namespace: Namespace<'_>) -> Result<usize, TreeError> {
        let tokens = self.whole_pages(tokens)?;
        Ok(self
            .locate(tokens, namespace)
            .map_or(0, |place| place.matched))
    }

    /// The slots on the path from the root to `node` at the positions from `since` on, row by row, each with
    /// the position it begins at; those of a deeper node first.
    ///
    /// # Errors
    /// [`TreeError::UnknownNode`].
    pub fn path_slots(
        &self,
        node: u64,
        since: usize,
    ) -> Result<impl Iterator<Item = (usize, Slots<'_>)>, TreeError> {
        let end = &self.nodes[self.resolve(node)?];
        let path = std::iter::successors(Some(end), |node| {
            (!node.is_root()).then(|| &self.nodes[node.parent])
        });
        Ok(path
            .take_while(move |node| node.end() > since)
            .flat_map(move |node| node.slots_since(since)))
    }

    /// Walk down from the namespace's root; `None` if not a page matches.
    pub(super) fn locate(&self, tokens: &[u32], namespace: Namespace<'_>) -> Option<Place> {
        let root = Place {
            node: self.root_of(namespace)?,
            within: 0,
            matched: 0,
            depth: 0,
        };
        Some(self.walk(tokens, root)).filter(|place| place.depth > 0)
    }

    /// Walk on from `place`, down as far as whole pages of `tokens` match.
    pub(super) fn walk(&self, tokens: &[u32], mut place: Place) -> Place {
        while place.within == self.nodes[place.node].len() {
            let rest = &tokens[place.matched..];
            if rest.is_empty() {
                break;
            }
            let Some(child) = self.nodes.child(place.node, rest) else {
                break;
            };
            let common = common_prefix(self.nodes[child].tokens(), rest);
            let within = common - common % self.page_size;
            if within == 0 {
                break;
            }
            place.node = child;
            place.within = within;
            place.matched += within;
            place.depth += 1;
        }
        place
    }

    /// Make the path to `end`, of `depth` nodes, the most recent, each node more than its parent, and do to
    /// each of them what `also` says.
    pub(super) fn touch(&mut self, end: u32, depth: u64, also: impl FnMut(&mut Node)) {
        self.evictable.remove(&self.nodes, end);
        self.stamp(end, depth, also);
        self.evictable.insert(&self.nodes, end);
    }

    /// `touch` of a path whose end is not listed as evictable. The nodes above it have children and are not
    /// either.
    pub(super) fn stamp(&mut self, end: u32, depth: u64, mut also: impl FnMut(&mut Node)) {
        self.clock += depth;
        let mut tick = self.clock;
        let mut index = end;
        while !self.nodes[index].is_root() {
            let node = &mut self.nodes[index];
            node.last_used = tick;
            also(node);
            index = node.parent;
            tick -= 1;
        }
    }
}
