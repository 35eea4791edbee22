//! The indexes of other routers, called as their own routers call them.

use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols as dynamo;
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::peer::Peer;
use crate::workload::{Event, Range, Workload, checksum};

/// Each event, or each block of each, as (replica, parent of what is stored, blocks).
fn each(workload: &Workload, singly: bool, mut event: impl FnMut(usize, Option<u64>, Range)) {
    for batch in &workload.batches {
        for said in &batch.events {
            let (Event::Stored { blocks, .. } | Event::Removed { blocks }) = said;
            let step = if singly { 1 } else { blocks.len() };
            for from in blocks.clone().step_by(step) {
                let parent = match said {
                    Event::Stored { .. } if from > blocks.start => Some(workload.hashes[from - 1]),
                    Event::Stored { parent, .. } => Some(*parent),
                    Event::Removed { .. } => None,
                };
                event(batch.replica, parent, from..from + step);
            }
        }
    }
}

/// smg's `ChainIndex`, with a map of each replica's blocks beside it, as smg keeps it.
pub struct Chain {
    index: ChainIndex,
    blocks: Vec<ChainBlockMap>,
    scores: Vec<(u32, u32)>,
}

pub enum ChainEvent {
    Stored(usize, Option<SequenceHash>, Vec<StoredBlock>),
    Removed(usize, Vec<SequenceHash>),
}

impl Peer for Chain {
    const NAME: &'static str = "ChainIndex";
    type Event = ChainEvent;
    type Query = Vec<ContentHash>;

    fn new(workload: &Workload) -> Self {
        let index = ChainIndex::with_max_workers(workload.replicas);
        let blocks = (0..workload.replicas).map(|replica| {
            index
                .intern_worker(&format!("replica-{replica}"))
                .expect("room for a worker");
            ChainBlockMap::new()
        });
        Self {
            blocks: blocks.collect(),
            index,
            scores: Vec::new(),
        }
    }

    fn events(workload: &Workload, singly: bool) -> Vec<ChainEvent> {
        let mut events = Vec::new();
        each(workload, singly, |replica, parent, blocks| {
            events.push(match parent {
                Some(parent) => {
                    let stored = blocks.map(|at| StoredBlock {
                        seq_hash: SequenceHash(workload.hashes[at]),
                        content_hash: ContentHash(workload.contents[at]),
                    });
                    let parent = (parent != 0).then_some(SequenceHash(parent));
                    ChainEvent::Stored(replica, parent, stored.collect())
                }
                None => {
                    let hashes = workload.hashes[blocks]
                        .iter()
                        .map(|&hash| SequenceHash(hash));
                    ChainEvent::Removed(replica, hashes.collect())
                }
            });
        });
        events
    }

    fn apply(&mut self, events: &mut Vec<ChainEvent>) {
        for event in events {
            match event {
                ChainEvent::Stored(replica, parent, blocks) => {
                    let map = &mut self.blocks[*replica];
                    self.index
                        .apply_stored(*replica as u32, blocks, *parent, map)
                        .expect("a known parent");
                }
                ChainEvent::Removed(replica, hashes) => {
                    self.index
                        .apply_removed(*replica as u32, hashes, &mut self.blocks[*replica]);
                }
            }
        }
    }

    fn query(workload: &Workload, prompt: usize) -> Vec<ContentHash> {
        workload.prompts[prompt]
            .1
            .iter()
            .map(|&hash| ContentHash(hash))
            .collect()
    }

    fn find(&mut self, query: &Vec<ContentHash>) {
        self.scores.clear();
        let scores = &mut self.scores;
        self.index.score_into(
            query,
            |hash| hash.0,
            false,
            |worker, score| scores.push((worker, score)),
        );
    }

    fn found(&self) -> u64 {
        checksum(
            self.scores
                .iter()
                .map(|&(worker, score)| (worker.into(), score.into())),
        )
    }
}

/// Dynamo's `ConcurrentRadixTreeCompressed`, fed through a channel, as its router feeds it.
pub struct Compressed {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    worker: Option<JoinHandle<()>>,
    found: u64,
}

impl Peer for Compressed {
    const NAME: &'static str = "Dynamo";
    type Event = dynamo::RouterEvent;
    type Query = Vec<dynamo::LocalBlockHash>;

    fn new(_: &Workload) -> Self {
        let (tasks, receiver) = flume::unbounded();
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let worker = std::thread::spawn({
            let tree = tree.clone();
            move || {
                tree.worker(receiver, None)
                    .expect("a worker that ends well")
            }
        });
        Self {
            tree,
            tasks,
            worker: Some(worker),
            found: 0,
        }
    }

    fn events(workload: &Workload, singly: bool) -> Vec<dynamo::RouterEvent> {
        let mut events = Vec::new();
        each(workload, singly, |replica, parent, blocks| {
            let hash = |at: usize| dynamo::ExternalSequenceBlockHash(workload.hashes[at]);
            let data = match parent {
                Some(parent) => dynamo::KvCacheEventData::Stored(dynamo::KvCacheStoreData {
                    parent_hash: (parent != 0).then_some(dynamo::ExternalSequenceBlockHash(parent)),
                    start_position: None,
                    blocks: blocks
                        .map(|at| dynamo::KvCacheStoredBlockData {
                            block_hash: hash(at),
                            tokens_hash: dynamo::LocalBlockHash(workload.contents[at]),
                            mm_extra_info: None,
                        })
                        .collect(),
                }),
                None => dynamo::KvCacheEventData::Removed(dynamo::KvCacheRemoveData {
                    block_hashes: blocks.map(hash).collect(),
                }),
            };
            let event_id = events.len() as u64;
            let event = dynamo::KvCacheEvent {
                event_id,
                data,
                dp_rank: 0,
            };
            events.push(dynamo::RouterEvent::new(replica as u64, event));
        });
        events
    }

    fn apply(&mut self, events: &mut Vec<dynamo::RouterEvent>) {
        for event in events.drain(..) {
            self.tasks
                .send(WorkerTask::Event(event))
                .expect("a worker that lives");
        }
        self.tasks
            .send(WorkerTask::CleanupStaleChildren)
            .expect("a worker that lives");
        let (done, wait) = tokio::sync::oneshot::channel();
        self.tasks
            .send(WorkerTask::Flush(done))
            .expect("a worker that lives");
        wait.blocking_recv().expect("a flush");
    }

    fn query(workload: &Workload, prompt: usize) -> Vec<dynamo::LocalBlockHash> {
        workload.prompts[prompt]
            .1
            .iter()
            .map(|&hash| dynamo::LocalBlockHash(hash))
            .collect()
    }

    fn find(&mut self, query: &Vec<dynamo::LocalBlockHash>) {
        let scores = self.tree.find_matches_impl(query, false).scores;
        let scores = scores
            .iter()
            .map(|(worker, &score)| (worker.worker_id, score.into()));
        self.found = checksum(scores);
    }

    fn found(&self) -> u64 {
        self.found
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        let sent = self.tasks.send(WorkerTask::Terminate);
        if sent.is_ok()
            && let Some(worker) = self.worker.take()
        {
            worker.join().expect("a worker that ends well");
        }
    }
}
