//! All blocks of the index: their chunks, and where a hash stands.

use super::arena::Arena;
use super::chunk::{CHUNK, Chunk, ChunkId, Hashes};
use super::locator::{Locator, Slot};
use super::run::RunId;
use super::span::Span;

/// A block's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub run: RunId,
    pub offset: usize,
}

/// Memory of so many chunks is kept for others.
const SPARE: usize = if cfg!(test) { 2 } else { 1024 };
/// With less, as much again is made ahead: touching memory for the first time takes longer than a step.
const AHEAD: usize = if cfg!(test) { 1 } else { 64 };

/// Chunks to use again.
#[derive(Debug, Default)]
struct Freed {
    ids: Vec<ChunkId>,
    spare: Vec<Hashes>,
}

/// The chunks by number, and the [`Locator`] that leads to them.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Whose they are.
    owners: Vec<RunId>,
    /// Up to where each chunk was written, of what the locator has not forgotten.
    written: Vec<u8>,
    free: Freed,
    locator: Locator,
    /// Of the locator, when it was last tidied.
    locator_bytes: usize,
    len: usize,
}

/// What is to be done with the locator, and with memory nobody uses yet, while others may read the index.
#[derive(Debug, Default)]
pub(crate) struct Errand {
    locator: Locator,
    /// Of chunks to make.
    shortage: usize,
    made: Vec<Hashes>,
    blocks: usize,
    sought: Option<u64>,
    found: Option<Vec<Slot>>,
}

impl Errand {
    pub fn run(&mut self) {
        self.made.resize_with(self.shortage, Hashes::default);
        self.locator.tidy(self.blocks);
        self.found = self.sought.map(|hash| self.locator.find(hash).collect());
    }
}

impl Blocks {
    /// Blocks there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where a hash stands, however deep inside a run, if `is` accepts it.
    pub fn find(&self, runs: &Arena, hash: u64, is: impl Fn(At) -> bool) -> Option<At> {
        self.find_among(self.places(hash), runs, hash, is)
    }

    /// The places it may be at, the newest first.
    pub fn places(&self, hash: u64) -> impl Iterator<Item = Slot> {
        self.locator.find(hash)
    }

    /// The same as `find` if it is at one of these places.
    pub fn find_among(
        &self,
        mut slots: impl Iterator<Item = Slot>,
        runs: &Arena,
        hash: u64,
        mut is: impl FnMut(At) -> bool,
    ) -> Option<At> {
        slots.find_map(|slot| {
            let chunk = slot / CHUNK as Slot;
            let run = self.owners[chunk as usize];
            let span = &runs[run].span;
            let number = span.chunks.iter().position(|own| own.id == chunk)?;
            let offset = (number * CHUNK + slot as usize % CHUNK)
                .checked_sub(span.skew)
                .filter(|&offset| offset < span.len)?;
            let at = At { run, offset };
            (span.get(offset) == hash && is(at)).then_some(at)
        })
    }

    fn shortage(&self) -> usize {
        let spare = self.free.spare.len();
        if spare < AHEAD { 2 * AHEAD - spare } else { 0 }
    }

    /// Gives the locator away, if there is something to tidy or a block to look for. Until it is back, no block may be
    /// changed or found.
    pub fn errand(&mut self, sought: Option<u64>) -> Option<Errand> {
        let shortage = self.shortage();
        let is_due = sought.is_some() || shortage > 0 || self.locator.is_untidy(self.len);
        is_due.then(|| Errand {
            locator: std::mem::take(&mut self.locator),
            shortage,
            made: Vec::new(),
            blocks: self.len,
            sought,
            found: None,
        })
    }

    /// The places that the block may be at, if one was looked for.
    pub fn done(&mut self, errand: Errand) -> Option<Vec<Slot>> {
        self.locator = errand.locator;
        self.free.spare.extend(errand.made);
        self.locator_bytes = self.locator.size_bytes();
        errand.found
    }

    /// Appends `hashes` to the span of `run`.
    pub fn append(&mut self, span: &mut Span, run: RunId, hashes: &[u64]) {
        let mut rest = hashes;
        let chunks = (span.skew + span.len + hashes.len()).div_ceil(CHUNK);
        if chunks > span.chunks.capacity() && !span.chunks.is_empty() {
            span.chunks.reserve(chunks - span.chunks.len());
        } else {
            span.chunks.reserve_exact(chunks - span.chunks.len());
        }
        while !rest.is_empty() {
            let at = span.end();
            if at == 0 || span.chunks.is_empty() {
                let chunk = self.new_chunk(run);
                span.chunks.push(chunk);
            }
            let (now, later) = rest.split_at(rest.len().min(CHUNK - at));
            self.write_end(span, at, now);
            span.len += now.len();
            rest = later;
        }
        if let Some(&last) = hashes.last() {
            span.last = last;
        }
        self.len += hashes.len();
    }

    /// Writes into the last chunk of a span.
    fn write_end(&mut self, span: &mut Span, at: usize, hashes: &[u64]) {
        let number = span.chunks.len() - 1;
        let chunk = &mut span.chunks[number];
        if at < self.written[chunk.id as usize] as usize {
            // Entries of blocks that were here before must not count as valid for ever.
            self.locator.forget_chunk(chunk.id);
            let from = if number == 0 { span.skew } else { 0 };
            let (kept, slot) = (chunk.range(from, at), slot(chunk.id, from));
            self.locator.log(kept, slot);
        }
        self.write(chunk, at, hashes);
    }

    fn write(&mut self, chunk: &mut Chunk, at: usize, hashes: &[u64]) {
        chunk.put(at, hashes);
        self.written[chunk.id as usize] = (at + hashes.len()) as u8;
        self.locator.log(hashes, slot(chunk.id, at));
    }

    /// Forgets all blocks of a span but the first `len`.
    pub fn truncate(&mut self, span: &mut Span, len: usize) {
        self.len -= span.len - len;
        let chunks = (span.skew + len).div_ceil(CHUNK);
        let kept = if len == 0 { 0 } else { chunks };
        while span.chunks.len() > kept
            && let Some(chunk) = span.chunks.pop()
        {
            free(&mut self.locator, &mut self.free, chunk);
        }
        span.len = len;
        span.last = if len == 0 { 0 } else { span.get(len - 1) };
        trim(&mut span.chunks);
    }

    /// Cuts a span strictly inside. The rest keeps the number of its run; the front, which is returned, gets `front`.
    pub fn split_front(&mut self, span: &mut Span, at: usize, run: RunId, front: RunId) -> Span {
        let (whole, within) = ((span.skew + at) / CHUNK, (span.skew + at) % CHUNK);
        let mut chunks = Vec::with_capacity(whole + usize::from(within > 0));
        chunks.extend(span.chunks.drain(..whole));
        if within > 0 {
            let to = CHUNK.min(within + span.len - at);
            let mut new = self.new_chunk(run);
            self.write(&mut new, within, span.chunks[0].range(within, to));
            chunks.push(std::mem::replace(&mut span.chunks[0], new));
        }
        self.own(&chunks, front);
        let mut head = Span {
            chunks,
            skew: span.skew,
            len: at,
            last: 0,
        };
        head.last = head.get(at - 1);
        span.skew = within;
        span.len -= at;
        trim(&mut span.chunks);
        head
    }

    /// Puts the blocks of `head` before those of `span`, which is the span of `run`.
    pub fn join_front(&mut self, mut head: Span, span: &mut Span, run: RunId) {
        self.own(&head.chunks, run);
        let mut rest = std::mem::replace(span, Span::at(0));
        let end = head.end();
        if end == rest.skew {
            if end > 0 {
                let shared = rest.chunks.remove(0);
                let to = CHUNK.min(end + rest.len);
                self.write_end(&mut head, end, shared.range(end, to));
                free(&mut self.locator, &mut self.free, shared);
            }
            head.chunks.append(&mut rest.chunks);
            head.len += rest.len;
            head.last = rest.last;
        } else {
            // Only a run whose parent was not known when it began.
            let hashes: Vec<u64> = rest.range(0, rest.len).collect();
            self.truncate(&mut rest, 0);
            self.append(&mut head, run, &hashes);
        }
        *span = head;
    }

    /// Reads what [`Self::join_front`] will.
    pub fn look_at_join(&self, head: &Span, rest: &Span) -> u64 {
        let owners = head
            .chunks
            .iter()
            .map(|chunk| u64::from(self.owners[chunk.id as usize]));
        let end = head.len.saturating_sub(CHUNK);
        let met = head
            .range(end, head.len)
            .chain(rest.range(0, rest.len.min(CHUNK)));
        owners.chain(met).fold(0, u64::wrapping_add)
    }

    fn own(&mut self, chunks: &[Chunk], run: RunId) {
        for chunk in chunks {
            self.owners[chunk.id as usize] = run;
        }
    }

    fn new_chunk(&mut self, run: RunId) -> Chunk {
        let id = self.free.ids.pop().unwrap_or(self.owners.len() as ChunkId);
        if id as usize == self.owners.len() {
            self.owners.push(run);
            self.locator.add_chunk();
            self.written.push(0);
        }
        self.owners[id as usize] = run;
        self.written[id as usize] = 0;
        Chunk::new(id, self.free.spare.pop().unwrap_or_default())
    }

    /// Bytes of the chunks and of what leads to them.
    pub fn size_bytes(&self) -> usize {
        let chunks = self.owners.len() - self.free.ids.len() + self.free.spare.len();
        let rows = self.owners.capacity() * (size_of::<RunId>() + 1);
        chunks * CHUNK * size_of::<u64>() + rows + self.locator_bytes
    }
}

/// A list that shrank to a quarter gives its memory back.
fn trim(chunks: &mut Vec<Chunk>) {
    if chunks.capacity() > 4 * chunks.len() {
        chunks.shrink_to_fit();
    }
}

fn slot(chunk: ChunkId, at: usize) -> Slot {
    chunk * CHUNK as u32 + at as u32
}

fn free(locator: &mut Locator, freed: &mut Freed, chunk: Chunk) {
    locator.forget_chunk(chunk.id);
    freed.ids.push(chunk.id);
    if freed.spare.len() < SPARE {
        freed.spare.push(chunk.hashes);
    }
}
