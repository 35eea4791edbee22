//! What happens to a request, each in one call: it is admitted, computes a part, and ends.
//!
//! These calls do what the small ones do, in the order given, in one walk.

use super::insert::Inserted;
use super::matching::Place;
use super::ranges::SlotRanges;
use super::{Claim, Namespace, Tree, TreeError};

/// Of what a lock covers so many tokens before its end are compared with those of the key: enough to notice
/// the receipt of another.
const COMPARED: usize = 256;

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
    pub freed: SlotRanges,
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
    /// `tokens` begin with those that `receipt` locks, if there are so many: what follows is compared, and the
    /// last 256 before; all of them if those differ. So the cost is that of what came since.
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
        let done = self.store(before, tokens, slots, prompt_length, claim, namespace)?;
        let receipt = self.lock_path(done.end);
        self.unlock_path(before);
        Ok(Checkpoint {
            length: self.nodes[done.end].end(),
            prefix_length: done.held,
            node: self.nodes.handle(done.end),
            receipt,
            freed: SlotRanges::of(&slots[claim.owned_from..done.held]),
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
    ) -> Result<SlotRanges, TreeError> {
        let before = self.live(receipt)?;
        let done = self.store(before, tokens, slots, prompt_length, claim, namespace)?;
        self.unlock_path(before);
        let mut freed = SlotRanges::of(&slots[claim.owned_from..done.held]);
        freed.extend(&slots[self.nodes[done.end].end()..]);
        Ok(freed)
    }

    /// `live`: the index of the receipt.
    fn store(
        &mut self,
        live: u32,
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
        let place = self
            .beyond(self.receipts[live], key, namespace)
            .map(|place| self.walk(key, place))
            .or_else(|| self.locate(key, namespace));
        let done = self.insert_at(place.as_ref(), tokens, slots, claim, namespace)?;
        let prompt = self.whole_pages(&tokens[..prompt_length.min(tokens.len())])?;
        if !prompt.is_empty() && prompt.len() < key.len() {
            let priority = claim.priority.saturating_add(1);
            self.part_output(&done, prompt.len(), priority);
        }
        Ok(done)
    }

    /// The end of `node`, if it is on the path of `tokens` by all that is compared.
    fn beyond(&self, node: u32, tokens: &[u32], namespace: Namespace<'_>) -> Option<Place> {
        let end = self.nodes[node].end();
        let mut depth = 0;
        let mut at = node;
        while !self.nodes[at].is_root() {
            let part = &self.nodes[at];
            let from = end.saturating_sub(COMPARED).clamp(part.start(), part.end());
            if tokens.get(from..part.end())? != &part.tokens()[from - part.start()..] {
                return None;
            }
            depth += 1;
            at = part.parent;
        }
        (depth > 0 && self.root_of(namespace) == Some(at)).then(|| Place {
            node,
            within: self.nodes[node].len(),
            matched: end,
            depth,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::HashKey;
    use crate::tree::EvictPolicy;

    const PLAIN: Namespace<'_> = Namespace {
        extra_key: "",
        cache_salt: "",
    };
    const OTHER: Namespace<'_> = Namespace {
        extra_key: "",
        cache_salt: "salt",
    };

    fn tree() -> Tree {
        Tree::new(1, 4, HashKey::new([0; 16]), "m", EvictPolicy::Lru).unwrap()
    }

    fn slots(first: i32, count: usize) -> Vec<i32> {
        (first..).take(count).collect()
    }

    /// A long prompt is computed, others part from it here and there, and its answer comes.
    #[test]
    fn a_request_goes_on_from_its_lock_as_if_it_were_compared_from_the_root() {
        let key: Vec<u32> = (0..2000).collect();
        for from in [0, 1, 255, 256, 257, 1000, 1999, 2000] {
            let (mut tree, mut twin) = (tree(), tree());
            for tree in [&mut tree, &mut twin] {
                tree.insert(&key[..1500], &slots(0, 1500), Claim::default(), PLAIN)
                    .unwrap();
                for parting in [1499, 1300, 700] {
                    let other = [&key[..parting], &[9999]].concat();
                    tree.match_prefix(&other, PLAIN).unwrap();
                }
            }
            let receipt = tree.admit(&key[..from], None, PLAIN).unwrap().receipt;
            let done = tree
                .checkpoint(
                    &key,
                    &slots(0, 2000),
                    1600,
                    receipt,
                    Claim::default(),
                    PLAIN,
                )
                .unwrap();

            let found = twin.match_prefix(&key[..from], PLAIN).unwrap().node;
            twin.lock(found).unwrap();
            let prompt = Claim {
                owned_from: 1600,
                counted_to: 1600,
                priority: 1,
            };
            twin.insert(&key, &slots(0, 2000), Claim::default(), PLAIN)
                .unwrap();
            twin.insert(&key[..1600], &slots(0, 2000), prompt, PLAIN)
                .unwrap();
            let end = twin.match_prefix(&key, PLAIN).unwrap();
            twin.lock(end.node).unwrap();

            assert_eq!((done.length, done.prefix_length), (2000, 1500));
            tree.unlock(done.receipt).unwrap();
            twin.check().unwrap();
            tree.check().unwrap();
            assert_eq!(tree.count_digest(), twin.count_digest());
            assert_eq!(
                tree.dump().replace(" lock=1", " lock=0"),
                twin.dump()
                    .replace(" lock=1", " lock=0")
                    .replace(" lock=2", " lock=0")
            );
        }
    }

    #[test]
    fn the_receipt_of_another_key_or_namespace_is_noticed() {
        let mut tree = tree();
        let key: Vec<u32> = (0..1000).collect();
        let mut other = key.clone();
        other[900] = 7;
        tree.insert(&key, &slots(0, 1000), Claim::default(), PLAIN)
            .unwrap();
        let mut own = 1000;
        for (tokens, namespace) in [
            (&other, PLAIN),
            (&key, OTHER),
            (&key[..999].to_vec(), PLAIN),
        ] {
            let receipt = tree.admit(&key, None, PLAIN).unwrap().receipt;
            tree.finish(
                tokens,
                &slots(own, 1000),
                0,
                receipt,
                Claim::default(),
                namespace,
            )
            .unwrap();
            own += 1000;
            assert_eq!(tree.peek(tokens, namespace), Ok(tokens.len()));
            tree.check().unwrap();
        }
        assert_eq!(tree.peek(&key, PLAIN), Ok(1000));
        assert_eq!(tree.stats().tokens, 1000 + 100 + 1000);
    }
}
