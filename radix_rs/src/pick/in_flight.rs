//! Prompts on their way: those this router has sent and those that replicas have announced, of other routers.
//!
//! Until a prompt is computed it is in no mirror. While it is in flight it therefore stands for its chain: all
//! its blocks count as expected on its replica, so that a burst of one new prefix stays together, whichever
//! routers it comes by, and the tokens it will compute count as work there.

use std::collections::HashMap;

use super::coming::Coming;
use super::pending::{Pending, Sent};
use crate::delta::Expected;
use crate::index::{Index, ReplicaId};

/// How long a prompt is expected that nobody says anything about.
const TTL_S: f64 = 60.0;

/// Prompts of other routers that are counted on a replica.
const MAX_ANNOUNCED: usize = 1024;

/// Blocks of theirs.
const MAX_ANNOUNCED_BLOCKS: usize = 1 << 16;

/// One replica's side. Both lists in the order in which they came, and so of their expiry.
#[derive(Debug, Default)]
struct Side {
    requests: u32,
    /// In the order of their tickets, too.
    sent: Vec<Pending>,
    /// What it announced and this router has not sent, or no longer waits for.
    announced: Vec<Pending>,
    /// Whether it is among those of which prompts wait for their time.
    is_untimed: bool,
}

impl Side {
    fn pending(&self) -> impl Iterator<Item = &Pending> + Clone {
        self.sent.iter().chain(&self.announced)
    }

    fn has_room_for(&self, blocks: usize) -> bool {
        let known: usize = self.announced.iter().map(Pending::num_blocks).sum();
        self.announced.len() < MAX_ANNOUNCED && known + blocks <= MAX_ANNOUNCED_BLOCKS
    }
}

/// All prompts in flight, by replica and by ticket. Tickets begin with 1 and are never used again.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    tickets: u64,
    requests: HashMap<u64, ReplicaId>,
    sides: Vec<Side>,
    /// The chains of all that the sides have.
    coming: Coming,
    /// No prompt came before, of those whose time is known.
    oldest_s: f64,
    /// Where prompts were announced since the last pick: batches come without the time.
    untimed: Vec<ReplicaId>,
}

impl InFlight {
    /// Enters a prompt and returns its ticket.
    pub fn send(&mut self, replica: ReplicaId, sent: &Sent<'_>, now_s: f64) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.requests.insert(ticket, replica);
        self.oldest_s = self.oldest_s.min(now_s);
        let prompt = Pending::sent(ticket, sent, now_s);
        self.coming.add(replica, prompt.start, &prompt.chain);
        let side = side(&mut self.sides, replica);
        side.requests += 1;
        side.sent.push(prompt);
        ticket
    }

    /// The replica has announced a prompt. One of this router's that ends alike is taken to be the same, until
    /// another announcement shows that there are two.
    pub fn expect(
        &mut self,
        replica: ReplicaId,
        expected: &Expected,
        block_tokens: u64,
        index: &Index,
    ) {
        let side = side(&mut self.sides, replica);
        let last = expected.hashes.last().copied();
        if last.is_none() || side.pending().any(|prompt| prompt.id == Some(expected.id)) {
            return;
        }
        let is_same = |prompt: &&mut Pending| prompt.id.is_none() && prompt.last() == last;
        if let Some(own) = side.sent.iter_mut().find(is_same) {
            own.id = Some(expected.id);
        } else if side.has_room_for(expected.hashes.len()) {
            let mut prompt = Pending::announced(expected, block_tokens);
            if !prompt.is_done(index, replica) {
                self.coming.add(replica, prompt.start, &prompt.chain);
                side.announced.push(prompt);
                self.untimed(replica);
            }
        }
    }

    /// The replica will not compute a prompt that it announced.
    pub fn dropped(&mut self, replica: ReplicaId, id: u64) {
        self.end(replica, |prompt| prompt.id == Some(id));
    }

    /// Forgets what the replica has announced: it will say it again, or its life is over.
    pub fn forget_announced(&mut self, replica: ReplicaId) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            for prompt in side.announced.drain(..) {
                self.coming.remove(replica, prompt.start, &prompt.chain);
            }
            for prompt in &mut side.sent {
                prompt.id = None;
            }
        }
    }

    /// Its prefill is done: it is no longer work, nor does anybody wait for its blocks. What the replica has
    /// announced it ends itself: its word on the blocks comes later than the first token.
    pub fn prefilled(&mut self, ticket: u64) {
        if let Some(&replica) = self.requests.get(&ticket) {
            let side = &mut self.sides[replica as usize];
            let place = side
                .sent
                .binary_search_by_key(&ticket, |prompt| prompt.ticket);
            if let Ok(index) = place {
                let mut prompt = side.sent.remove(index);
                if prompt.id.is_some() {
                    prompt.since_s = f64::INFINITY;
                    side.announced.push(prompt);
                    self.untimed(replica);
                } else {
                    self.coming.remove(replica, prompt.start, &prompt.chain);
                }
            }
        }
    }

    /// Where the request went that has not ended.
    pub fn replica(&self, ticket: u64) -> Option<ReplicaId> {
        self.requests.get(&ticket).copied()
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
        self.end(replica, |_| true);
        if let Some(side) = self.sides.get_mut(replica as usize) {
            *side = Side {
                is_untimed: side.is_untimed,
                ..Side::default()
            };
            self.requests.retain(|_, at| *at != replica);
        }
    }

    /// Stops expecting prompts that are too old. Their requests still count until they are released.
    pub fn expire(&mut self, now_s: f64) {
        for replica in self.untimed.drain(..) {
            let side = &mut self.sides[replica as usize];
            side.is_untimed = false;
            let new = side.announced.iter_mut().rev();
            for prompt in new.take_while(|prompt| prompt.since_s.is_infinite()) {
                prompt.since_s = now_s;
                self.oldest_s = self.oldest_s.min(now_s);
            }
        }
        if self.oldest_s + TTL_S > now_s {
            return;
        }
        self.oldest_s = f64::INFINITY;
        for (replica, side) in (0..).zip(&mut self.sides) {
            for prompts in [&mut side.sent, &mut side.announced] {
                for prompt in prompts.drain(..expired(prompts, now_s)) {
                    self.coming.remove(replica, prompt.start, &prompt.chain);
                }
                if let Some(first) = prompts.first() {
                    self.oldest_s = self.oldest_s.min(first.since_s);
                }
            }
        }
    }

    /// A load arrived: it may contain every prompt sent before.
    pub fn load_reported(&mut self, replica: ReplicaId) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            for prompt in &mut side.sent {
                prompt.reported = true;
            }
        }
    }

    /// Blocks were stored: prompts end where all of theirs are, for what is left of them is less than a block.
    pub fn blocks_stored(&mut self, replica: ReplicaId, index: &Index) {
        self.end(replica, |prompt| prompt.is_done(index, replica));
    }

    /// The same for prompts that end in this run, whether the index knows it or not.
    pub fn run_stored(&mut self, replica: ReplicaId, hashes: &[u64]) {
        let ends_here = |last| hashes.contains(&last);
        self.end(replica, |prompt| prompt.last().is_some_and(ends_here));
    }

    /// How far prompts in flight go along with one, and where: see [`Coming::along`].
    pub fn along<'a>(
        &'a self,
        chain: &'a [u64],
    ) -> impl Iterator<Item = (usize, &'a [ReplicaId])> + 'a {
        self.coming.along(chain)
    }

    /// Prompts there whose prefill is not known to be done.
    pub fn pending(&self, replica: ReplicaId) -> impl Iterator<Item = &Pending> + Clone {
        let side = self.sides.get(replica as usize);
        side.into_iter().flat_map(Side::pending)
    }

    /// Requests there that have not ended, of this router.
    pub fn requests(&self, replica: ReplicaId) -> u32 {
        self.sides
            .get(replica as usize)
            .map_or(0, |side| side.requests)
    }

    /// Those of them whose prefill is not known to be done.
    pub fn prefills(&self, replica: ReplicaId) -> usize {
        self.sides
            .get(replica as usize)
            .map_or(0, |side| side.sent.len())
    }

    /// The last prompt announced there came at a time that is still to be known.
    fn untimed(&mut self, replica: ReplicaId) {
        let side = &mut self.sides[replica as usize];
        if !std::mem::replace(&mut side.is_untimed, true) {
            self.untimed.push(replica);
        }
    }

    /// Forgets the prompts there that are over.
    fn end(&mut self, replica: ReplicaId, mut is_over: impl FnMut(&mut Pending) -> bool) {
        if let Some(side) = self.sides.get_mut(replica as usize) {
            for prompts in [&mut side.sent, &mut side.announced] {
                for prompt in prompts.extract_if(.., &mut is_over) {
                    self.coming.remove(replica, prompt.start, &prompt.chain);
                }
            }
        }
    }
}

fn side(sides: &mut Vec<Side>, replica: ReplicaId) -> &mut Side {
    let index = replica as usize;
    if index >= sides.len() {
        sides.resize_with(index + 1, Side::default);
    }
    &mut sides[index]
}

/// How many are too old, of prompts in the order in which they came.
fn expired(prompts: &[Pending], now_s: f64) -> usize {
    let is_old = |prompt: &Pending| prompt.since_s + TTL_S <= now_s;
    prompts.iter().take_while(|prompt| is_old(prompt)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_while_nothing_is_picked_leaves_one_mark_a_replica() {
        let (mut in_flight, mut index) = (InFlight::default(), Index::default());
        let replica = index.add_replica();
        for id in 1..100 {
            let expected = Expected {
                id,
                start: 0,
                hashes: vec![id],
            };
            in_flight.expect(replica, &expected, 16, &index);
            in_flight.dropped(replica, id);
        }
        assert_eq!(in_flight.untimed.len(), 1);
        in_flight.expire(0.0);
        assert!(in_flight.untimed.is_empty());
    }
}
