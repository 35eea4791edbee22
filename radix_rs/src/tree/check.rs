//! Every invariant, computed anew. For tests: it costs as much as the tree is large.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::blocks;
use super::node::NONE;
use super::{Namespace, Tree, TreeError};
use crate::chain;

impl Tree {
    /// # Errors
    /// [`TreeError::Broken`] names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), TreeError> {
        let reached = self.check_structure()?;
        self.check_slots()?;
        self.check_locks()?;
        self.check_recency()?;
        self.check_edges()?;
        self.check_blocks(reached)
    }

    /// Links agree in both directions, edges are whole pages, siblings differ in their first page, and
    /// everything hangs from a root. Returns how many nodes do.
    fn check_structure(&self) -> Result<usize, TreeError> {
        let mut reached = 0;
        let mut stack: Vec<u32> = self.roots().collect();
        for (root, namespace) in self
            .namespaces
            .sorted()
            .iter()
            .map(|(name, root)| (*root, name))
        {
            holds(self.nodes[root].num_children > 0, || {
                format!("namespace {namespace:?} is kept though empty")
            })?;
        }
        while let Some(index) = stack.pop() {
            reached += 1;
            let node = &self.nodes[index];
            let children: Vec<u32> = self.nodes.children(index).collect();
            holds(children.len() == node.num_children as usize, || {
                format!(
                    "node {index} counts {} children, has {}",
                    node.num_children,
                    children.len()
                )
            })?;
            let mut pages = HashSet::new();
            for child in children {
                self.check_child(index, child)?;
                holds(
                    pages.insert(&self.nodes[child].tokens()[..self.page_size]),
                    || format!("two children of node {index} have the same first page"),
                )?;
                stack.push(child);
            }
        }
        holds(reached == self.nodes.len(), || {
            format!("{} nodes, {reached} hang from a root", self.nodes.len())
        })?;
        let listed = self.nodes.len() - 1 - self.namespaces.len();
        holds(self.nodes.listed_children() == listed, || {
            format!(
                "the table lists {} children of {listed}",
                self.nodes.listed_children()
            )
        })?;
        Ok(reached)
    }

    fn check_child(&self, parent: u32, child: u32) -> Result<(), TreeError> {
        let node = &self.nodes[child];
        holds(node.parent == parent, || {
            format!(
                "node {child} is a child of {parent}, its parent is {}",
                node.parent
            )
        })?;
        holds(
            node.len() > 0 && node.len().is_multiple_of(self.page_size),
            || {
                format!(
                    "node {child} has {} tokens, page_size is {}",
                    node.len(),
                    self.page_size
                )
            },
        )?;
        holds(node.start() == self.nodes[parent].end(), || {
            format!(
                "node {child} begins at {}, its parent ends elsewhere",
                node.start()
            )
        })?;
        let found = self.nodes.find(parent, &node.tokens()[..self.page_size]);
        holds(found == Some(child), || {
            format!("a lookup of node {child} finds {found:?}")
        })
    }

    fn check_slots(&self) -> Result<(), TreeError> {
        let mut seen = HashSet::new();
        for (index, node) in self.nodes.iter() {
            for slot in node.slots() {
                holds(seen.insert(slot), || {
                    format!("slot {slot} again in node {index}")
                })?;
            }
        }
        holds(seen.len() == self.stats().tokens, || {
            format!("{} slots, {} tokens", seen.len(), self.stats().tokens)
        })
    }

    /// Lock counts are the receipts that cover a node; sizes and the evictable set follow from them.
    fn check_locks(&self) -> Result<(), TreeError> {
        let mut locks: HashMap<u32, u32> = HashMap::new();
        for (_, &end) in self.receipts.iter() {
            let mut index = end;
            while self.nodes[index].parent != NONE {
                *locks.entry(index).or_default() += 1;
                index = self.nodes[index].parent;
            }
        }
        let (mut evictable, mut protected) = (0, 0);
        let mut leaves = BTreeSet::new();
        for (index, node) in self.nodes.iter() {
            let expected = locks.get(&index).copied().unwrap_or(0);
            holds(node.lock_ref == expected, || {
                format!(
                    "node {index} has lock_ref {}, {expected} receipts cover it",
                    node.lock_ref
                )
            })?;
            *if expected == 0 {
                &mut evictable
            } else {
                &mut protected
            } += node.len();
            if node.is_evictable() {
                leaves.insert(self.evictable.entry(index, node));
            }
        }
        holds(evictable == self.evictable_tokens, || {
            format!(
                "{evictable} tokens are evictable, {} counted",
                self.evictable_tokens
            )
        })?;
        holds(protected == self.protected_tokens, || {
            format!(
                "{protected} tokens are protected, {} counted",
                self.protected_tokens
            )
        })?;
        holds(leaves == *self.evictable.entries(), || {
            format!(
                "evictable leaves are {leaves:?}, listed {:?}",
                self.evictable.entries()
            )
        })?;
        let keys: HashSet<_> = leaves.iter().map(|(key, _)| key).collect();
        holds(keys.len() == leaves.len(), || {
            format!("evictable leaves with the same key: {leaves:?}")
        })
    }

    /// A parent was last used with its most recent child, just before it, or later.
    fn check_recency(&self) -> Result<(), TreeError> {
        let mut ticks = HashSet::new();
        for (index, node) in self.nodes.iter().filter(|(_, node)| !node.is_root()) {
            holds(
                node.last_used <= self.clock && ticks.insert(node.last_used),
                || format!("node {index} has tick {}, not its own", node.last_used),
            )?;
            let parent = &self.nodes[node.parent];
            holds(
                parent.is_root() || parent.last_used + 1 >= node.last_used,
                || format!("node {index} was used after its parent"),
            )?;
        }
        Ok(())
    }

    /// The nodes of one edge lie on one path, piece after piece, and waste at most a quarter of it.
    fn check_edges(&self) -> Result<(), TreeError> {
        for (index, node) in self.nodes.iter().filter(|(_, node)| !node.is_root()) {
            let range = node.range();
            if range.start > 0 {
                let above = &self.nodes[node.parent];
                holds(
                    above.edge.is(&node.edge) && above.range().end == range.start,
                    || format!("node {index} does not continue its parent's edge"),
                )?;
            }
            let is_last = !self
                .nodes
                .children(index)
                .any(|child| self.nodes[child].edge.is(&node.edge));
            holds(
                !is_last || (node.edge.len() - range.end) * 4 <= node.edge.len(),
                || {
                    format!(
                        "edge of node {index} holds {} tokens, {} in use",
                        node.edge.len(),
                        range.end
                    )
                },
            )?;
        }
        Ok(())
    }

    /// Hashes are those of the path's tokens, `count` and `digest` those of the hashes.
    fn check_blocks(&self, reached: usize) -> Result<(), TreeError> {
        let mut count = 0;
        let mut digest = 0u64;
        let mut visited = 0;
        let default = (Namespace::default(), self.root);
        for (namespace, root) in std::iter::once(default).chain(self.namespaces.sorted()) {
            let seed = self.seed(namespace);
            let of_group = chain::blocks_in_group(self.block_size);
            // Each with the hash before the group that it begins in, and that group's tokens above it.
            let mut stack = vec![(root, seed, Vec::new())];
            while let Some((index, mut anchor, mut group)) = stack.pop() {
                visited += 1;
                let node = &self.nodes[index];
                let above = group.len() / self.block_size;
                group.extend_from_slice(node.tokens());
                let mut hashes = Vec::new();
                chain::extend_chain(&self.hash_key, anchor, &group, self.block_size, &mut hashes);
                holds(
                    node.hashes(self.block_size)
                        .eq(hashes[above..].iter().copied()),
                    || format!("block hashes of node {index} are not those of its tokens"),
                )?;
                count += (hashes.len() - above) as u64;
                digest = digest.wrapping_add(blocks::sum(hashes[above..].iter().copied()));
                let ended = hashes.len() - hashes.len() % of_group;
                group.drain(..ended * self.block_size);
                if let Some(last) = ended.checked_sub(1) {
                    anchor = hashes[last];
                }
                for child in self.nodes.children(index) {
                    stack.push((child, anchor, group.clone()));
                }
            }
        }
        holds(visited == reached, || {
            format!("{visited} nodes visited, {reached} reached")
        })?;
        holds((count, digest) == self.count_digest(), || {
            format!(
                "{count} blocks with digest {digest}, counted {:?}",
                self.count_digest()
            )
        })
    }
}

fn holds(condition: bool, message: impl FnOnce() -> String) -> Result<(), TreeError> {
    if condition {
        Ok(())
    } else {
        Err(TreeError::Broken(message()))
    }
}
