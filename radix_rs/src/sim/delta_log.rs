//! What a replica says of its tree and its work, in the batches that real replicas send.

use prost::Message;

use super::trace::{BlockId, Trace, chain_hash, parent_hash};
use crate::chain::HASH_VERSION;
use crate::delta::{DeltaBatch, DeltaEvent, Event, Expected, Load, Removed, Stored};
use crate::index::Tally;

/// The batches of one replica.
#[derive(Debug)]
pub(super) struct DeltaLog {
    epoch: u64,
    block_size: u32,
    seq: u64,
    tally: Tally,
    events: Vec<Event>,
    /// The block before the one that the last event removed.
    before_removed: Option<BlockId>,
}

impl DeltaLog {
    pub fn new(epoch: u64, block_size: u32) -> Self {
        Self {
            epoch,
            block_size,
            seq: 0,
            tally: Tally::default(),
            events: Vec::new(),
            before_removed: None,
        }
    }

    pub fn stored(&mut self, parent: Option<BlockId>, run: &[BlockId]) {
        let hashes: Vec<u64> = run.iter().map(|&block| chain_hash(block)).collect();
        self.tally.count += hashes.len() as u64;
        for &hash in &hashes {
            self.tally.digest = self.tally.digest.wrapping_add(hash);
        }
        let parent = parent_hash(parent);
        self.events.push(Event::Stored(Stored { parent, hashes }));
    }

    pub fn removed(&mut self, block: BlockId, trace: &Trace) {
        let hash = chain_hash(block);
        self.tally.count -= 1;
        self.tally.digest = self.tally.digest.wrapping_sub(hash);
        match self.events.last_mut() {
            Some(Event::Removed(run)) if self.before_removed == Some(block) => {
                *run = Removed::new(hash, run.last, run.count + 1, run.sum().wrapping_add(hash));
            }
            _ => self
                .events
                .push(Event::Removed(Removed::new(hash, hash, 1, hash))),
        }
        self.before_removed = trace.parent(block);
    }

    pub fn expected(&mut self, expected: Expected) {
        self.events.push(Event::Expected(expected));
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next batch: all since the one before, or a heartbeat.
    pub fn seal(&mut self, load: Load) -> Vec<u8> {
        self.seq += 1;
        let events = std::mem::take(&mut self.events);
        self.batch(events, load)
    }

    /// The tree as of the last batch, given its runs and the prompts that are expected.
    pub fn snapshot(&self, events: Vec<Event>, load: Load) -> Vec<u8> {
        self.batch(events, load)
    }

    fn batch(&self, events: Vec<Event>, load: Load) -> Vec<u8> {
        DeltaBatch {
            epoch: self.epoch,
            seq: self.seq,
            block_size: self.block_size,
            hash_version: HASH_VERSION,
            events: events
                .into_iter()
                .map(|event| DeltaEvent { event: Some(event) })
                .collect(),
            load: Some(load),
            count: self.tally.count,
            digest: self.tally.digest,
        }
        .encode_to_vec()
    }
}
