//! What the replicas of a fleet would publish, simulated: a cache each, least recently used blocks go first.

use std::collections::{HashMap, VecDeque};

/// Share of the prompts that do not go to the replica with the longest match, in percent.
const SPILL: u64 = 10;
/// A match of this many blocks says nothing: all prompts begin so.
const SHARED: usize = 32;
/// Tokens in a block, and 16-token blocks in one of the trace.
const IN_TRACE_BLOCK: u64 = 32;

/// Blocks `from..to` of `Workload::hashes`.
pub type Range = std::ops::Range<usize>;

/// One change, as a publisher would say it.
pub enum Event {
    Stored {
        parent: u64,
        blocks: Range,
    },
    /// In order of eviction: each one the parent of the one before it.
    Removed {
        blocks: Range,
    },
}

/// What one prompt changed at the replica it went to.
pub struct Batch {
    pub replica: usize,
    pub events: Vec<Event>,
    /// Blocks the replica holds afterwards, and their digest.
    pub count: u64,
    pub digest: u64,
}

/// A simulated history.
pub struct Workload {
    pub replicas: usize,
    /// Chain hashes of each prompt, and the hashes of the blocks alone.
    pub prompts: Vec<(Vec<u64>, Vec<u64>)>,
    /// Chain hash and the block's own, of all that was stored and removed.
    pub hashes: Vec<u64>,
    pub contents: Vec<u64>,
    pub batches: Vec<Batch>,
    /// For each prompt, a checksum of every replica's match at the end.
    pub truth: Vec<u64>,
    pub operations: usize,
    /// (block, replica) pairs held at the end.
    pub held: usize,
}

/// Spreads small numbers over 64 bits: the finaliser of `MurmurHash3`.
pub fn mix(number: u64) -> u64 {
    let mut x = number;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// A checksum of (replica, matched blocks) pairs, in any order.
pub fn checksum(matches: impl Iterator<Item = (u64, u64)>) -> u64 {
    matches.fold(0, |sum, (replica, blocks)| {
        sum.wrapping_add(mix(replica + 1).wrapping_mul(blocks))
    })
}

/// The prompts of a trace in the format of Mooncake: a JSON object a line, with the ids of 512-token blocks.
pub fn trace_prompts(text: &str) -> Vec<Vec<u64>> {
    text.lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            let ids = line["hash_ids"].as_array().expect("hash_ids, a list");
            ids.iter()
                .map(|id| id.as_u64().expect("a number"))
                .collect()
        })
        .collect()
}

/// Conversations of the same shape: a shared start, then turns that repeat what was said before.
pub fn made_prompts(count: usize) -> Vec<Vec<u64>> {
    let mut conversations: VecDeque<Vec<u64>> = VecDeque::new();
    let mut next = 1;
    (0..count as u64)
        .map(|number| {
            let random = mix(number + 1);
            let mut prompt = if conversations.len() > 300 && random % 10 < 4 {
                let index = (random >> 8) as usize % conversations.len();
                conversations.swap_remove_back(index).expect("one is there")
            } else {
                vec![0]
            };
            let new = 1 + (random >> 32) % 32;
            prompt.extend(next..next + new);
            next += new;
            if conversations.len() > 3000 {
                conversations.pop_front();
            }
            conversations.push_back(prompt.clone());
            prompt
        })
        .collect()
}

/// Least recently used block first; a block is used whenever one after it is.
struct Cache {
    /// When each block was last used, and its parent.
    used: HashMap<u64, (u64, u64)>,
    queue: VecDeque<(u64, u64)>,
    clock: u64,
    digest: u64,
}

impl Cache {
    fn new() -> Self {
        Self {
            used: HashMap::new(),
            queue: VecDeque::new(),
            clock: 0,
            digest: 0,
        }
    }

    fn matched(&self, chain: &[u64]) -> usize {
        chain.partition_point(|hash| self.used.contains_key(hash))
    }

    fn touch(&mut self, chain: &[u64]) {
        for (index, &hash) in chain.iter().enumerate().rev() {
            self.clock += 1;
            let parent = index.checked_sub(1).map_or(0, |before| chain[before]);
            if self.used.insert(hash, (self.clock, parent)).is_none() {
                self.digest = self.digest.wrapping_add(hash);
            }
            self.queue.push_back((self.clock, hash));
        }
    }

    /// The evicted block and its parent.
    fn evict(&mut self) -> (u64, u64) {
        loop {
            let (clock, hash) = self.queue.pop_front().expect("a block to evict");
            if let Some(&(used, parent)) = self.used.get(&hash)
                && used == clock
            {
                self.used.remove(&hash);
                self.digest = self.digest.wrapping_sub(hash);
                return (hash, parent);
            }
        }
    }
}

impl Workload {
    /// Sends the prompts, blocks of 512 tokens, to replicas with room for `capacity` blocks of 16 tokens.
    pub fn new(prompts: &[Vec<u64>], replicas: usize, capacity: usize) -> Self {
        let mut all = Self {
            replicas,
            prompts: prompts
                .iter()
                .map(|prompt| chain(prompt, capacity))
                .collect(),
            hashes: Vec::new(),
            contents: Vec::new(),
            batches: Vec::new(),
            truth: Vec::new(),
            operations: 0,
            held: 0,
        };
        let mut caches: Vec<Cache> = (0..replicas).map(|_| Cache::new()).collect();
        let mut turn = 0;
        for number in 0..all.prompts.len() {
            let matched: Vec<_> = caches
                .iter()
                .map(|cache| cache.matched(&all.prompts[number].0))
                .collect();
            let best = matched.iter().copied().max().unwrap_or(0);
            let sticks = best > SHARED && mix(number as u64 + 1) % 100 >= SPILL;
            let replica = if sticks {
                matched
                    .iter()
                    .position(|&blocks| blocks == best)
                    .unwrap_or(0)
            } else {
                turn += 1;
                turn % replicas
            };
            all.send(
                number,
                replica,
                &mut caches[replica],
                matched[replica],
                capacity,
            );
        }
        all.operations = all.hashes.len();
        all.held = caches.iter().map(|cache| cache.used.len()).sum();
        all.truth = all
            .prompts
            .iter()
            .map(|(chain, _)| {
                let matched = caches.iter().map(|cache| cache.matched(chain) as u64);
                checksum((0..).zip(matched))
            })
            .collect();
        all
    }

    fn send(
        &mut self,
        number: usize,
        replica: usize,
        cache: &mut Cache,
        matched: usize,
        capacity: usize,
    ) {
        let (chain, contents) = &self.prompts[number];
        let mut events = Vec::new();
        cache.touch(&chain[..matched]);
        let over = (cache.used.len() + chain.len() - matched).saturating_sub(capacity);
        let mut before = 0;
        for _ in 0..over {
            let (hash, parent) = cache.evict();
            let at = self.hashes.len();
            match events.last_mut() {
                Some(Event::Removed { blocks }) if before == hash => blocks.end = at + 1,
                _ => events.push(Event::Removed { blocks: at..at + 1 }),
            }
            self.hashes.push(hash);
            self.contents.push(0);
            before = parent;
        }
        if matched < chain.len() {
            let parent = matched.checked_sub(1).map_or(0, |last| chain[last]);
            let from = self.hashes.len();
            self.hashes.extend(&chain[matched..]);
            self.contents.extend(&contents[matched..]);
            events.push(Event::Stored {
                parent,
                blocks: from..self.hashes.len(),
            });
        }
        cache.touch(chain);
        let (count, digest) = (cache.used.len() as u64, cache.digest);
        self.batches.push(Batch {
            replica,
            events,
            count,
            digest,
        });
    }
}

/// Chain hashes of a prompt in 16-token blocks, and the hashes of the blocks alone.
fn chain(prompt: &[u64], capacity: usize) -> (Vec<u64>, Vec<u64>) {
    let ids = prompt
        .iter()
        .flat_map(|id| (0..IN_TRACE_BLOCK).map(move |part| id * IN_TRACE_BLOCK + part));
    let contents: Vec<u64> = ids.take(capacity).map(|id| mix(id + (1 << 40))).collect();
    let mut hash = 1u64;
    let chain = contents.iter().map(|content| {
        hash = mix(hash.rotate_left(23) ^ content).max(1);
        hash
    });
    (chain.collect(), contents)
}
