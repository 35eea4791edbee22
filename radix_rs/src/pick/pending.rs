//! A prompt whose prefill is not known to be done.

use std::sync::Arc;

use crate::delta::Expected;
use crate::index::{Index, ReplicaId, bisect};

/// A prompt that was just picked.
pub(crate) struct Sent<'a> {
    pub chain: &'a [u64],
    /// Leading blocks in the replica's mirror.
    pub stored: usize,
    pub block_tokens: u64,
    pub prompt_tokens: u64,
    pub uncached_tokens: u64,
}

/// A prompt on its way through a replica, sent by this router or announced by the replica.
#[derive(Debug)]
pub(crate) struct Pending {
    /// 0: another router sent it.
    pub ticket: u64,
    /// What the replica calls it, once it has announced it.
    pub id: Option<u64>,
    /// When it came; infinite as long as no clock was at hand.
    pub since_s: f64,
    /// Its blocks from the one numbered `start` on.
    pub chain: Arc<[u64]>,
    pub start: usize,
    /// Leading blocks of `chain` that the replica held when last looked at.
    stored: usize,
    block_tokens: u64,
    /// Its tokens from `start` on.
    tokens: u64,
    /// What it had to compute when it was picked or announced.
    uncached_tokens: u64,
    /// Whether a load reported after it was picked may contain it.
    pub reported: bool,
}

impl Pending {
    pub fn sent(ticket: u64, sent: &Sent<'_>, since_s: f64) -> Self {
        Self {
            ticket,
            id: None,
            since_s,
            chain: sent.chain.into(),
            start: 0,
            stored: sent.stored,
            block_tokens: sent.block_tokens,
            tokens: sent.prompt_tokens,
            uncached_tokens: sent.uncached_tokens,
            reported: false,
        }
    }

    /// The load that came with it contains it.
    pub fn announced(expected: &Expected, block_tokens: u64) -> Self {
        let tokens = expected.hashes.len() as u64 * block_tokens;
        Self {
            ticket: 0,
            id: Some(expected.id),
            since_s: f64::INFINITY,
            chain: expected.hashes.as_slice().into(),
            start: expected.start as usize,
            stored: 0,
            block_tokens,
            tokens,
            uncached_tokens: tokens,
            reported: true,
        }
    }

    /// Names the whole prompt, but for what does not fill a block.
    pub fn last(&self) -> Option<u64> {
        self.chain.last().copied()
    }

    pub fn num_blocks(&self) -> usize {
        self.chain.len()
    }

    /// How long it has been here.
    pub fn waited_s(&self, now_s: f64) -> f64 {
        (now_s - self.since_s).max(0.0)
    }

    /// Tokens it has still to compute, at most: as its blocks are stored, they are done.
    pub fn remaining_tokens(&self) -> u64 {
        let beyond = self.tokens - self.stored as u64 * self.block_tokens;
        self.uncached_tokens.min(beyond)
    }

    /// Looks up how far its chain is stored by now; true if all of it is, which it was not before.
    pub fn is_done(&mut self, index: &Index, replica: ReplicaId) -> bool {
        let left = &self.chain[self.stored..];
        if left.first().is_none_or(|&hash| !index.holds(replica, hash)) {
            return false;
        }
        self.stored += bisect(left.len(), |i| index.holds(replica, left[i]));
        self.stored == self.chain.len()
    }
}
