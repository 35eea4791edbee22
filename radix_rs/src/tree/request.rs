//! What happens to a request, each in one call: it is admitted, computes a part, and ends.
//!
//! These calls do what the small ones do, in the order given, in one walk.

use super::insert::Inserted;
use super::matching::Place;
use super::{Claim, Namespace, Tree, TreeError};

/// What an admitted request starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Tokens cached, a whole number of pages.
    pub length: usize,
    /// Handle of the node that ends there.
    pub node: u64,
    /// Of the lock on that node.
    pub receipt: u64,
}

/// What a request has in the tree after a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Tokens of the key that the tree holds: the whole pages.
    pub length: usize,
    /// Tokens of the key that the tree held before.
    pub prefix_length: usize,
    /// Handle of the node the key ends at.
    pub node: u64,
    /// Of the lock on that node.
    pub receipt: u64,
    /// The request's slots that the tree did not take, to be freed.
    pub freed: Vec<i32>,
}

impl Tree {
    /// [`Tree::match_prefix`], then [`Tree::lock`]; and [`Tree::unlock`] of `receipt`, the lock held before.
    ///
    /// # Errors
    /// [`TreeError::KeyTooLong`], [`TreeError::UnknownReceipt`].
    pub fn admit(
        &mut self,
        tokens: &[u32],
        receipt: Option<u64>,
        namespace: Namespace<'_>,
    ) -> Result<Admission, TreeError> {
        let before = receipt.map(|receipt| self.live(receipt)).transpose()?;
        let (length, end) = self.match_key(tokens, namespace)?;
        let receipt = self.lock_path(end);
        if let Some(before) = before {
            self.unlock_path(before);
        }
        Ok(Admission {
            length,
            node: self.nodes.handle(end),
            receipt,
        })
    }

    /// [`Tree::insert`] of the whole pages of `tokens`; of the prompt alone, its first `prompt_length`
    /// tokens, with a priority higher by one; a match of the whole; and the lock moved to where that ends.
    ///
    /// Ends a node where prompt and output meet, so that the output can be evicted alone. The slots from
    /// `claim.owned_from` to `prefix_length` are given back: from there on, the request is to use the
    /// tree's, see [`Tree::path_slots`].
    ///
    /// # Errors
    /// As [`Tree::insert`]; [`TreeError::NotHeld`] also if `owned_from` is beyond the whole pages of
    /// `tokens`; [`TreeError::UnknownReceipt`].
    pub fn checkpoint(
        &mut self,
        tokens: &[u32],
        slots: &[i32],
        prompt_length: usize,
        receipt: u64,
        claim: Claim,
        namespace: Namespace<'_>,
    ) -> Result<Checkpoint, TreeError> {
        let before = self.live(receipt)?;
        let done = self.store(tokens, slots, prompt_length, claim, namespace)?;
        let receipt = self.lock_path(done.end);
        self.unlock_path(before);
        Ok(Checkpoint {
            length: self.nodes[done.end].end(),
            prefix_length: done.held,
            node: self.nodes.handle(done.end),
            receipt,
            freed: slots[claim.owned_from..done.held].to_vec(),
        })
    }

    /// A last [`Tree::checkpoint`], and [`Tree::unlock`].
    ///
    /// Returns all slots that the tree did not take: beside those of a checkpoint, those past the whole
    /// pages, also past the end of `tokens`.
    ///
    /// # Errors
    /// As [`Tree::checkpoint`].
    pub fn finish(
        &mut self,
        tokens: &[u32],
        slots: &[i32],
        prompt_length: usize,
        receipt: u64,
        claim: Claim,
        namespace: Namespace<'_>,
    ) -> Result<Vec<i32>, TreeError> {
        let before = self.live(receipt)?;
        let done = self.store(tokens, slots, prompt_length, claim, namespace)?;
        self.unlock_path(before);
        let tail = self.nodes[done.end].end();
        Ok([&slots[claim.owned_from..done.held], &slots[tail..]].concat())
    }

    fn store(
        &mut self,
        tokens: &[u32],
        slots: &[i32],
        prompt_length: usize,
        claim: Claim,
        namespace: Namespace<'_>,
    ) -> Result<Inserted, TreeError> {
        let key = self.whole_pages(tokens)?;
        if claim.owned_from > key.len() {
            return Err(TreeError::NotHeld {
                owned_from: claim.owned_from,
                held: self.peek(key, namespace)?,
            });
        }
        let done = self.insert_key(tokens, slots, claim, namespace)?;
        let prompt = self.whole_pages(&tokens[..prompt_length.min(tokens.len())])?;
        if !prompt.is_empty() && prompt.len() < key.len() {
            let priority = claim.priority.saturating_add(1);
            self.part_output(&done, prompt.len(), priority);
        }
        Ok(done)
    }

    /// End a node at `prompt`, inside the path just inserted, and raise the priority of those up to there.
    fn part_output(&mut self, done: &Inserted, prompt: usize, priority: i64) {
        let mut node = done.end;
        while self.nodes[node].start() >= prompt {
            node = self.nodes[node].parent;
        }
        if self.nodes[node].end() > prompt {
            let within = prompt - self.nodes[node].start();
            node = self.settle(&Place {
                node,
                within,
                matched: prompt,
                depth: 0,
            });
            self.touch(done.end, done.depth + 1, |_| ());
        }
        // They have children: no key in the order of eviction changes.
        while !self.nodes[node].is_root() {
            let above = &mut self.nodes[node];
            above.priority = above.priority.max(priority);
            node = above.parent;
        }
    }
}
