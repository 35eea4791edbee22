//! Prompts this router has sent and whose prefill it has not seen end.
//!
//! Until a replica announces a prompt's blocks nobody else knows that they are coming. A prompt in flight
//! therefore stands for its chain: all its blocks count as expected on its replica, so that a burst of one
//! new prefix stays together, and the tokens it will compute count as work there.

use std::collections::HashMap;

use crate::index::{Index, ReplicaId, bisect, common};

/// How long a prompt is expected that nobody says anything about.
const TTL_S: f64 = 60.0;

/// A prompt whose prefill is not known to be done.
#[derive(Debug)]
pub(crate) struct Pending {
    ticket: u64,
    expires_s: f64,
    /// `chain[0]`, or 0: most prompts differ here already.
    first: u64,
    chain: Box<[u64]>,
    /// Leading blocks of the chain that the replica held when last looked at.
    stored: usize,
    block_tokens: u64,
    prompt_tokens: u64,
    /// What it had to compute when it was picked.
    uncached_tokens: u64,
    /// Whether a load reported after it was picked may contain it.
    pub reported: bool,
}

impl Pending {
    /// Tokens it has still to compute, at most: as its blocks are stored, they are done.
    pub fn remaining_tokens(&self) -> u64 {
        let beyond = self.prompt_tokens - self.stored as u64 * self.block_tokens;
        self.uncached_tokens.min(beyond)
    }

    /// Leading blocks it shares with `chain`.
    fn common(&self, chain: &[u64]) -> usize {
        if chain.first() == Some(&self.first) {
            common(&self.chain, chain)
        } else {
            0
        }
    }

    /// Looks up how far its chain is stored by now; true if all of it is, which it was not before.
    fn is_done(&mut self, index: &Index, replica: ReplicaId) -> bool {
        let left = &self.chain[self.stored..];
        if left.first().is_none_or(|&hash| !index.holds(replica, hash)) {
            return false;
        }
        self.stored += bisect(left.len(), |i| index.holds(replica, left[i]));
        self.stored == self.chain.len()
    }
}

/// One replica's side.
#[derive(Debug, Default)]
struct Side {
    requests: u32,
    /// In the order of their tickets, and so of their expiry.
    pending: Vec<Pending>,
}

/// A prompt that was just picked.
pub(crate) struct Sent<'a> {
    pub chain: &'a [u64],
    /// Leading blocks in the replica's mirror.
    pub stored: usize,
    pub block_tokens: u64,
    pub prompt_tokens: u64,
    pub uncached_tokens: u64,
}

/// All prompts in flight, by replica and by ticket. Tickets begin with 1 and are never used again.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    tickets: u64,
    requests: HashMap<u64, ReplicaId>,
    sides: Vec<Side>,
}

impl InFlight {
    /// Enters a prompt and returns its ticket.
    pub fn send(&mut self, replica: ReplicaId, sent: &Sent<'_>, now_s: f64) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.requests.insert(ticket, replica);
        let index = replica as usize;
        if index >= self.sides.len() {
            self.sides.resize_with(index + 1, Side::default);
        }
        self.sides[index].requests += 1;
        self.sides[index].pending.push(Pending {
            ticket,
            expires_s: now_s + TTL_S,
            first: sent.chain.first().copied().unwrap_or(0),
            chain: sent.chain.into(),
            stored: sent.stored,
            block_tokens: sent.block_tokens,
            prompt_tokens: sent.prompt_tokens,
            uncached_tokens: sent.uncached_tokens,
            reported: false,
        });
        ticket
    }

    /// Its prefill is done: it is no longer work, nor does anybody wait for its blocks.
    pub fn prefilled(&mut self, ticket: u64) {
        if let Some(&replica) = self.requests.get(&ticket) {
            let pending = &mut self.sides[replica as usize].pending;
            if let Ok(index) = pending.binary_search_by_key(&ticket, |prompt| prompt.ticket) {
                pending.remove(index);
            }
        }
    }

    /// Its request ended.
    pub fn release(&mut self, ticket: u64) {
        self.prefilled(ticket);
        if let Some(replica) = self.requests.remove(&ticket) {
            self.sides[replica as usize].requests -= 1;
        }
    }

    /// Forgets everything about a replica; its tickets become unknown.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            *side = Side::default();
            self.requests.retain(|_, at| *at != replica);
        }
    }

    /// Stops expecting prompts that are too old. Their requests still count until they are released.
    pub fn expire(&mut self, now_s: f64) {
        for side in &mut self.sides {
            let old = side
                .pending
                .iter()
                .take_while(|prompt| prompt.expires_s <= now_s)
                .count();
            side.pending.drain(..old);
        }
    }

    /// A load arrived: it may contain every prompt sent before.
    pub fn load_reported(&mut self, replica: ReplicaId) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            for prompt in &mut side.pending {
                prompt.reported = true;
            }
        }
    }

    /// Blocks were stored: prompts end where all of theirs are, for what is left of them is less than a block.
    pub fn blocks_stored(&mut self, replica: ReplicaId, index: &Index) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            side.pending
                .retain_mut(|prompt| !prompt.is_done(index, replica));
        }
    }

    /// Leading blocks of `chain` that prompts in flight there have or will have stored.
    pub fn expected(&self, replica: ReplicaId, chain: &[u64]) -> usize {
        self.pending(replica)
            .iter()
            .map(|prompt| prompt.common(chain))
            .max()
            .unwrap_or(0)
    }

    /// Prompts there whose prefill is not known to be done.
    pub fn pending(&self, replica: ReplicaId) -> &[Pending] {
        self.sides
            .get(replica as usize)
            .map_or(&[], |side| &side.pending)
    }

    /// Requests there that have not ended.
    pub fn requests(&self, replica: ReplicaId) -> u32 {
        self.sides
            .get(replica as usize)
            .map_or(0, |side| side.requests)
    }
}
