//! Making room: which leaf goes, and what goes with it.

use super::{Tree, TreeError};

impl Tree {
    /// Evict unlocked leaves, least recent first, until `num_tokens` are freed or none is left.
    ///
    /// A leaf goes as a whole, so the last one may free more than asked. Once its last child is gone, a
    /// parent competes at the place its own last use gives it. Returns the slots.
    pub fn evict(&mut self, num_tokens: usize) -> Vec<i32> {
        let mut freed = Vec::new();
        while freed.len() < num_tokens {
            let Some((_, leaf)) = self.evictable.pop_first() else {
                break;
            };
            self.remove_leaf(leaf, &mut freed);
        }
        self.evicted_total += freed.len() as u64;
        freed
    }

    /// Drop everything. Handles from before are stale. Returns all slots.
    ///
    /// # Errors
    /// [`TreeError::Locked`] while a receipt is live.
    pub fn reset(&mut self) -> Result<Vec<i32>, TreeError> {
        if self.receipts.len() > 0 {
            return Err(TreeError::Locked {
                locks: self.receipts.len(),
            });
        }
        let slots = self
            .nodes
            .iter()
            .flat_map(|(_, node)| node.slots())
            .collect();
        self.nodes.clear();
        self.namespaces.clear();
        self.evictable.clear();
        self.evictable_tokens = 0;
        self.blocks.clear();
        self.root = self.nodes.add_root();
        Ok(slots)
    }

    fn remove_leaf(&mut self, leaf: u32, freed: &mut Vec<i32>) {
        let before = self.last_hash(self.nodes[leaf].parent);
        let node = self.nodes.remove(leaf);
        freed.extend(node.slots());
        self.blocks.remove(before, node.hashes(self.block_size));
        self.evictable_tokens -= node.len();

        let parent = node.parent;
        let begins_run = node.range().start == 0;
        drop(node);
        if !begins_run {
            self.shrink_run(parent);
        }
        let above = &self.nodes[parent];
        if above.is_evictable() {
            self.evictable.insert((above.last_used, parent));
        } else if above.is_root() && above.num_children == 0 && self.namespaces.remove(parent) {
            self.nodes.remove_root(parent);
        }
    }

    /// Copy what is left of a run to a smaller one once more than a quarter of it is gone. `last` is its
    /// last piece; the others are its ancestors. Each evicted token pays for at most three copied ones.
    fn shrink_run(&mut self, last: u32) {
        let node = &self.nodes[last];
        let live = node.range().end;
        let dead = node.run.len() - live;
        if dead * 4 <= node.run.len() {
            return;
        }
        let hashes = node.end() / self.block_size - (node.end() - live) / self.block_size;
        let old = node.run.clone();
        let new = old.prefix(live, hashes);
        let mut index = last;
        while self.nodes[index].run.is(&old) {
            self.nodes[index].run = new.clone();
            index = self.nodes[index].parent;
        }
    }
}
