//! Keeping paths from eviction.

use super::{Tree, TreeError};

/// Set in every receipt and in no node's handle, so that one is never taken for the other.
const RECEIPT: u64 = 1 << 63;

impl Tree {
    /// Protect the path from the root to `node`. The receipt is good for one [`Tree::unlock`].
    ///
    /// Nodes may be split while locked: the upper part takes over the locks of the whole, so the receipt,
    /// which names the lower end, still undoes exactly what it did.
    ///
    /// # Errors
    /// [`TreeError::UnknownNode`].
    pub fn lock(&mut self, node: u64) -> Result<u64, TreeError> {
        let end = self.resolve(node)?;
        Ok(self.lock_path(end))
    }

    pub(super) fn lock_path(&mut self, end: u32) -> u64 {
        let mut index = end;
        while !self.nodes[index].is_root() {
            self.evictable.remove(&self.nodes, index);
            let node = &mut self.nodes[index];
            node.lock_ref += 1;
            if node.lock_ref == 1 {
                self.evictable_tokens -= node.len();
                self.protected_tokens += node.len();
            }
            index = node.parent;
        }
        let receipt = self.receipts.insert(end);
        self.receipts.handle(receipt) | RECEIPT
    }

    /// Undo one [`Tree::lock`].
    ///
    /// # Errors
    /// [`TreeError::UnknownReceipt`].
    pub fn unlock(&mut self, receipt: u64) -> Result<(), TreeError> {
        let live = self.live(receipt)?;
        self.unlock_path(live);
        Ok(())
    }

    /// The index of a receipt that was not used yet.
    pub(super) fn live(&self, receipt: u64) -> Result<u32, TreeError> {
        (receipt & RECEIPT != 0)
            .then(|| self.receipts.resolve(receipt & !RECEIPT))
            .flatten()
            .ok_or(TreeError::UnknownReceipt(receipt))
    }

    pub(super) fn unlock_path(&mut self, live: u32) {
        let mut index = self.receipts.remove(live);
        while !self.nodes[index].is_root() {
            let node = &mut self.nodes[index];
            node.lock_ref -= 1;
            if node.lock_ref == 0 {
                self.protected_tokens -= node.len();
                self.evictable_tokens += node.len();
            }
            let parent = node.parent;
            self.evictable.insert(&self.nodes, index);
            index = parent;
        }
    }
}
