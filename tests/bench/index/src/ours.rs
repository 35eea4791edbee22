//! The index of this repository.

use radix_rs::chain::{HASH_VERSION, HashKey};
use radix_rs::delta::{DeltaBatch, DeltaEvent, Event as Said, Removed, Stored};
use radix_rs::index::{Index, Matches, ReplicaId, ReplicaSet};
use radix_rs::pick::{PolicyKind, Router, Settings};

use crate::peer::Peer;
use crate::workload::{Event, Workload, checksum, mix};

pub struct Ours {
    index: Index,
    ids: Vec<ReplicaId>,
    all: ReplicaSet,
    matches: Matches,
}

/// An event without its bytes.
pub enum Change {
    Stored(usize, u64, Vec<u64>),
    Removed(usize, Removed),
}

impl Peer for Ours {
    const NAME: &'static str = "ours";
    type Event = Change;
    type Query = Vec<u64>;

    fn new(workload: &Workload) -> Self {
        let mut index = Index::default();
        let ids: Vec<_> = (0..workload.replicas)
            .map(|_| index.add_replica())
            .collect();
        let mut all = ReplicaSet::default();
        ids.iter().for_each(|&id| all.insert(id));
        Self {
            index,
            ids,
            all,
            matches: Matches::default(),
        }
    }

    fn events(workload: &Workload, singly: bool) -> Vec<Change> {
        let mut changes = Vec::new();
        for batch in &workload.batches {
            for event in &batch.events {
                let (Event::Stored { blocks, .. } | Event::Removed { blocks }) = event;
                let hashes = &workload.hashes[blocks.clone()];
                match event {
                    Event::Stored { parent, .. } if singly => {
                        let mut parent = *parent;
                        for &hash in hashes {
                            changes.push(Change::Stored(batch.replica, parent, vec![hash]));
                            parent = hash;
                        }
                    }
                    Event::Stored { parent, .. } => {
                        changes.push(Change::Stored(batch.replica, *parent, hashes.to_vec()));
                    }
                    Event::Removed { .. } if singly => {
                        let each = hashes.iter().map(|hash| range(std::slice::from_ref(hash)));
                        changes.extend(each.map(|range| Change::Removed(batch.replica, range)));
                    }
                    Event::Removed { .. } => {
                        changes.push(Change::Removed(batch.replica, range(hashes)));
                    }
                }
            }
        }
        changes
    }

    fn apply(&mut self, events: &mut Vec<Change>) {
        for event in events {
            match event {
                Change::Stored(replica, parent, hashes) => {
                    self.index.store(self.ids[*replica], *parent, hashes);
                }
                Change::Removed(replica, range) => {
                    self.index.remove(self.ids[*replica], range);
                }
            }
        }
    }

    fn query(workload: &Workload, prompt: usize) -> Vec<u64> {
        workload.prompts[prompt].0.clone()
    }

    fn find(&mut self, query: &Vec<u64>) {
        self.index.walk(query, &self.all, &mut self.matches);
    }

    fn found(&self) -> u64 {
        let matches = self.ids.iter().map(|&id| self.matches.of(id) as u64);
        checksum((0..).zip(matches))
    }
}

/// What a publisher says when these go, the last of the chain first.
fn range(hashes: &[u64]) -> Removed {
    let mut hashes = hashes.to_vec();
    hashes.reverse();
    Removed::of(&hashes).expect("at least one block")
}

/// A snapshot of so many blocks in chunks of some megabytes: prompts of 800 blocks that begin alike.
pub fn snapshot(blocks: u64) -> Vec<Vec<u8>> {
    const PROMPT: u64 = 800;
    const CHUNK: usize = 250;
    let hash = |prompt: u64, at: u64| mix(prompt << 32 | (at + 1));
    let trunk: Vec<u64> = (0..PROMPT).map(|at| hash(0, at)).collect();
    let mut events = vec![(0, trunk.clone())];
    for prompt in 1..blocks / PROMPT {
        let own = (0..PROMPT).map(|at| hash(prompt, at)).collect();
        events.push((trunk[(prompt % PROMPT) as usize], own));
    }
    let mut held = Vec::new();
    let chunks = events.chunks(CHUNK).map(|runs| {
        held.extend(runs.iter().flat_map(|(_, hashes)| hashes));
        let events = runs.iter().map(|(parent, hashes)| DeltaEvent {
            event: Some(Said::Stored(Stored {
                parent: *parent,
                hashes: hashes.clone(),
            })),
        });
        let chunk = DeltaBatch {
            epoch: 2,
            seq: 1,
            block_size: 16,
            hash_version: HASH_VERSION,
            events: events.collect(),
            load: None,
            count: held.len() as u64,
            digest: held
                .iter()
                .fold(0, |sum: u64, &&hash| sum.wrapping_add(hash)),
        };
        prost::Message::encode_to_vec(&chunk)
    });
    chunks.collect()
}

/// The batches as they come out of Redis.
pub fn wire(workload: &Workload) -> Vec<(usize, Vec<u8>)> {
    let mut seqs = vec![0; workload.replicas];
    let batches = workload.batches.iter().map(|batch| {
        let events = batch.events.iter().map(|event| {
            let event = match event {
                Event::Stored { parent, blocks } => {
                    let hashes = workload.hashes[blocks.clone()].to_vec();
                    Said::Stored(Stored {
                        parent: *parent,
                        hashes,
                    })
                }
                Event::Removed { blocks } => Said::Removed(range(&workload.hashes[blocks.clone()])),
            };
            DeltaEvent { event: Some(event) }
        });
        seqs[batch.replica] += 1;
        let message = DeltaBatch {
            epoch: 1,
            seq: seqs[batch.replica],
            block_size: 16,
            hash_version: HASH_VERSION,
            events: events.collect(),
            load: None,
            count: batch.count,
            digest: batch.digest,
        };
        (batch.replica, prost::Message::encode_to_vec(&message))
    });
    batches.collect()
}

/// A router whose mirrors are empty and wait for the first batch of epoch 1, and the names of its replicas.
pub fn router(replicas: usize) -> (Router, Vec<String>) {
    let router = Router::new(&Settings::new(HashKey::derive(b"bench"), PolicyKind::Cost));
    let empty = DeltaBatch {
        epoch: 1,
        block_size: 16,
        hash_version: HASH_VERSION,
        ..DeltaBatch::default()
    };
    let empty = prost::Message::encode_to_vec(&empty);
    let names: Vec<_> = (0..replicas)
        .map(|replica| format!("replica-{replica}"))
        .collect();
    for name in &names {
        router.add_replica(name, "model", 16).expect("a new name");
        router
            .apply_snapshot(name, &empty, true)
            .expect("an empty snapshot");
    }
    (router, names)
}
