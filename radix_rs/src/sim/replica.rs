//! One replica: a queue of prompts, a cache, and a rate at which it computes.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tokens are far below 2^53, and times are a model's"
)]

use super::agenda::{Agenda, Event};
use super::cache::Cache;
use super::delta_log::DeltaLog;
use super::trace::{BlockId, Request, Trace, chain_hash, parent_hash};
use crate::delta::{self, Expected, Load, LoadClass, PrefillOrder, Stored};

/// Seconds that a step takes besides computing, and that the end of a prefill adds.
const STEP_S: f64 = 0.001;
const FIRST_TOKEN_S: f64 = 0.004;

/// How fast replicas are, and how they choose.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// Which prompt goes first.
    pub order: PrefillOrder,
    /// Tokens of a prompt computed before the next choice.
    pub chunk_tokens: u64,
    /// Tokens computed in a second.
    pub prefill_tokens_per_s: f64,
    /// A waiting prompt counts as smaller by this part of what could be computed meanwhile.
    pub aging: f64,
    /// Seconds for a token of an answer when nothing else is decoded.
    pub decode_s: f64,
    /// With so many answers at once each takes twice as long.
    pub decode_doubles: f64,
    /// Tokens that a cache holds.
    pub cache_tokens: u64,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            order: PrefillOrder::Shortest,
            chunk_tokens: 4096,
            prefill_tokens_per_s: 20_000.0,
            aging: 0.1,
            decode_s: 0.02,
            decode_doubles: 64.0,
            cache_tokens: 1_000_000,
        }
    }
}

/// A prompt that is not computed.
#[derive(Debug)]
struct Waiting {
    /// Its place in the trace.
    request: usize,
    /// Since it has begun: tokens left.
    remaining: Option<u64>,
    /// Blocks it was announced from.
    announced_from: Option<usize>,
}

/// A chunk under way.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    request: usize,
    tokens: u64,
}

/// What happened when a chunk was done.
pub(super) struct Computed {
    pub request: usize,
    /// It was the prompt's last.
    pub is_last: bool,
}

/// One replica of the model.
#[derive(Debug)]
pub struct Replica {
    engine: Engine,
    number: usize,
    cache: Cache,
    log: DeltaLog,
    queue: Vec<Waiting>,
    chunk: Option<Chunk>,
    decodes: u32,
    picked: u64,
    prefilled_tokens: u64,
    cached_tokens: u64,
}

impl Replica {
    pub(super) fn new(number: usize, engine: Engine, trace: &Trace) -> Self {
        let capacity = engine.cache_tokens / u64::from(trace.block_size());
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self {
            engine,
            number,
            cache: Cache::new(capacity, trace.num_blocks()),
            log: DeltaLog::new(number as u64 + 1, trace.block_size()),
            queue: Vec::new(),
            chunk: None,
            decodes: 0,
            picked: 0,
            prefilled_tokens: 0,
            cached_tokens: 0,
        }
    }

    /// Requests there that have not ended.
    pub fn in_flight(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.decodes)
    }

    /// Requests it ever got.
    pub fn picked(&self) -> u64 {
        self.picked
    }

    /// Tokens of prompts that it computed.
    pub fn prefilled_tokens(&self) -> u64 {
        self.prefilled_tokens
    }

    /// Tokens of prompts that it had.
    pub fn cached_tokens(&self) -> u64 {
        self.cached_tokens
    }

    /// Blocks in its cache.
    pub fn cached_blocks(&self) -> usize {
        self.cache.len()
    }

    /// Leading blocks of a request's prompt in its cache.
    pub fn matched_blocks(&self, trace: &Trace, request: &Request) -> usize {
        self.cache.matched(trace.blocks(request))
    }

    /// Tokens of waiting prompts that are not computed.
    pub fn pending_tokens(&self, trace: &Trace) -> u64 {
        self.queue.iter().map(|each| self.left(each, trace)).sum()
    }

    pub(super) fn accept(&mut self, request: usize, trace: &Trace) {
        let blocks = trace.blocks(&trace.requests()[request]);
        let start = self.cache.matched(blocks);
        let announced = expected(request, start, blocks);
        self.queue.push(Waiting {
            request,
            remaining: None,
            announced_from: announced.as_ref().map(|_| start),
        });
        if let Some(announced) = announced {
            self.log.expected(announced);
        }
        self.picked += 1;
    }

    /// Goes on with the prompt that goes first, unless it is at one.
    pub(super) fn go_on(&mut self, now_s: f64, trace: &Trace, agenda: &mut Agenda) {
        if self.chunk.is_some() {
            return;
        }
        let first = (0..self.queue.len()).min_by(|&a, &b| {
            self.rank(a, now_s, trace)
                .total_cmp(&self.rank(b, now_s, trace))
        });
        let Some(first) = first else { return };
        let request = self.queue[first].request;
        let remaining = match self.queue[first].remaining {
            Some(tokens) => tokens,
            None => self.begin(first, trace),
        };
        let tokens = remaining.min(self.engine.chunk_tokens);
        self.chunk = Some(Chunk { request, tokens });
        let overhead_s = STEP_S
            + if tokens == remaining {
                FIRST_TOKEN_S
            } else {
                0.0
            };
        let end_s = now_s + tokens as f64 / self.engine.prefill_tokens_per_s + overhead_s;
        let replica = self.number;
        agenda.enter(end_s, Event::ChunkEnds { replica });
    }

    /// The chunk is in the cache.
    pub(super) fn chunk_ends(&mut self, trace: &Trace) -> Option<Computed> {
        let Chunk { request, tokens } = self.chunk.take()?;
        let at = self.queue.iter().position(|each| each.request == request)?;
        let left = self.queue[at].remaining? - tokens;
        self.queue[at].remaining = Some(left);
        self.prefilled_tokens += tokens;
        let prompt = &trace.requests()[request];
        let blocks = trace.blocks(prompt);
        let is_last = left == 0;
        let whole = (prompt.prompt_tokens - left) / u64::from(trace.block_size());
        let computed = if is_last {
            blocks.len()
        } else {
            to_usize(whole)
        };
        self.keep(&blocks[..computed.min(blocks.len())], trace);
        if is_last {
            self.queue.remove(at);
            self.decodes += 1;
        }
        Some(Computed { request, is_last })
    }

    /// Seconds from the first token of an answer to the last.
    pub(super) fn answer_s(&self, request: &Request) -> f64 {
        let slower = 1.0 + f64::from(self.decodes) / self.engine.decode_doubles;
        request.output_tokens as f64 * self.engine.decode_s * slower
    }

    pub(super) fn answer_ends(&mut self) {
        self.decodes -= 1;
    }

    pub(super) fn seal(&mut self, trace: &Trace) -> Vec<u8> {
        let load = self.load(trace);
        self.log.seal(load)
    }

    /// Its tree and the prompts it has announced; what was not sent before is in it, too.
    pub(super) fn snapshot(&mut self, trace: &Trace) -> (Option<Vec<u8>>, Vec<u8>) {
        let unsent = self.log.has_events().then(|| self.seal(trace));
        let stored = self.cache.blocks().collect::<Vec<_>>();
        // The most recent ones first, so that parents come before their children.
        let stored = stored.iter().rev().map(|&block| {
            delta::Event::Stored(Stored {
                parent: parent_hash(trace.parent(block)),
                hashes: vec![chain_hash(block)],
            })
        });
        let expected = self.queue.iter().filter_map(|each| {
            let blocks = trace.blocks(&trace.requests()[each.request]);
            expected(each.request, each.announced_from?, blocks).map(delta::Event::Expected)
        });
        let events = stored.chain(expected).collect();
        (unsent, self.log.snapshot(events, self.load(trace)))
    }

    /// What it has of a prompt is settled when it begins.
    fn begin(&mut self, at: usize, trace: &Trace) -> u64 {
        let prompt = &trace.requests()[self.queue[at].request];
        let blocks = trace.blocks(prompt);
        let block_size = u64::from(trace.block_size());
        let matched = self.cache.matched(blocks) as u64 * block_size;
        let cached = matched.min(prompt.prompt_tokens - 1);
        self.cached_tokens += cached;
        self.keep(&blocks[..to_usize(cached / block_size)], trace);
        let left = prompt.prompt_tokens - cached;
        self.queue[at].remaining = Some(left);
        left
    }

    fn keep(&mut self, chain: &[BlockId], trace: &Trace) {
        let held = self.cache.matched(chain);
        if held < chain.len() {
            let parent = held.checked_sub(1).map(|last| chain[last]);
            self.log.stored(parent, &chain[held..]);
        }
        self.cache.keep(chain);
        while let Some(block) = self.cache.evict() {
            self.log.removed(block, trace);
        }
    }

    /// The lowest goes first, of equal ones the first to come.
    fn rank(&self, at: usize, now_s: f64, trace: &Trace) -> f64 {
        let each = &self.queue[at];
        let arrived_s = trace.requests()[each.request].arrived_s;
        if self.engine.order == PrefillOrder::Shortest {
            let forgiven = self.engine.aging * self.engine.prefill_tokens_per_s;
            self.left(each, trace) as f64 - forgiven * (now_s - arrived_s)
        } else {
            arrived_s
        }
    }

    fn left(&self, waiting: &Waiting, trace: &Trace) -> u64 {
        waiting.remaining.unwrap_or_else(|| {
            let prompt = &trace.requests()[waiting.request];
            let matched = self.matched_blocks(trace, prompt) as u64;
            let matched = matched * u64::from(trace.block_size());
            prompt.prompt_tokens.saturating_sub(matched).max(1)
        })
    }

    fn load(&self, trace: &Trace) -> Load {
        let mut classes = std::collections::BTreeMap::<u32, LoadClass>::new();
        for each in &self.queue {
            let tokens = self.left(each, trace);
            let log2 = tokens.ilog2();
            let class = classes.entry(log2).or_insert(LoadClass {
                log2,
                ..LoadClass::default()
            });
            class.requests += 1;
            class.tokens += tokens;
        }
        let rate = self.engine.prefill_tokens_per_s;
        let block_size = u64::from(trace.block_size());
        let (held, room) = (self.cache.len() as u64, self.cache.capacity() as u64);
        Load {
            running: self.decodes,
            waiting: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            pending_tokens: classes.values().map(|class| class.tokens).sum(),
            classes: classes.into_values().collect(),
            order: self.engine.order as i32,
            free_slots: room.saturating_sub(held) * block_size,
            evictable_slots: held * block_size,
            total_slots: room * block_size,
            draining: false,
            chunk_tokens: self.engine.chunk_tokens,
            prefill_tokens_per_s: rate as u64,
        }
    }
}

/// What a prompt will have stored, if that is not there.
fn expected(request: usize, start: usize, blocks: &[BlockId]) -> Option<Expected> {
    (start < blocks.len()).then(|| Expected {
        id: request as u64 + 1,
        start: u32::try_from(start).expect("fewer than 2^32 blocks in memory"),
        hashes: blocks[start..]
            .iter()
            .map(|&block| chain_hash(block))
            .collect(),
    })
}

fn to_usize(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}
