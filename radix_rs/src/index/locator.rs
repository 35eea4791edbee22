//! From a hash to the places it may be at, for all blocks: a hash table made for writing.
//!
//! One random access to a table of all blocks costs more than all else that storing or removing a block does, and
//! few blocks are ever looked for: where a prompt branches off, or what a replica evicts next, once for many
//! blocks. So the buckets are few and long. A new entry goes to the end of its bucket, and those ends fit the
//! nearer caches; a removal leaves its entries behind; looking up reads a bucket from its newest entry back. Entries
//! are put into their buckets some at a time, so that the waits for memory overlap, however few come at once.
//!
//! An entry is valid while its chunk has the generation it was written under; whoever finds it compares the
//! hash it leads to. A full bucket first drops its invalid entries. Buckets are split one at a time as they
//! grow (linear hashing: Litwin, VLDB 1980).
//!
//! All of this needs nothing but the locator itself, and no match needs the locator: so it is put off until
//! [`Locator::tidy`], which may be called while others read the index.

use super::chunk::{CHUNK, ChunkId};

/// Blocks for each bucket above which the table grows; in tests, small tables have many buckets.
const LONG: usize = if cfg!(test) { 8 } else { 512 };
/// Entries that are put into their buckets together, or a few more.
const PENDING: usize = if cfg!(test) { 4 } else { 64 };
/// Entries that are compared at once.
const AT_ONCE: usize = 16;
/// Entries beyond twice the blocks there are that are let be.
const SLACK: usize = if cfg!(test) { 16 } else { 1024 };
/// Low bits of the hash in an entry. They choose the bucket, too: what is left of them tells entries apart.
const TAG_BITS: u32 = 24;
/// Entries that a bucket has room for at least when it grows.
const ROOM: usize = LONG / 4;
/// So many that four bits of the tag are left to tell the entries of a bucket apart.
const MAX_BUCKETS: usize = 1 << (TAG_BITS - 4);

/// A place in a chunk: `ChunkId * CHUNK + offset`.
pub(crate) type Slot = u32;

/// See [`super::chunk::Chunk`]; wraps around, which can make an invalid entry look valid, and no more.
type Generation = u8;

/// Tag, generation and slot in one word.
#[derive(Clone, Copy, Debug)]
struct Entry(u64);

impl Entry {
    fn new(hash: u64, generation: Generation, slot: Slot) -> Self {
        Self(hash << (64 - TAG_BITS) | u64::from(generation) << 32 | u64::from(slot))
    }

    fn has_tag_of(self, hash: u64) -> bool {
        (self.0 ^ hash << (64 - TAG_BITS)) >> (64 - TAG_BITS) == 0
    }

    /// The low bits of its hash.
    fn tag(self) -> usize {
        (self.0 >> (64 - TAG_BITS)) as usize
    }

    fn slot(self) -> Slot {
        self.0 as Slot
    }

    fn is_valid(self, generations: &[Generation]) -> bool {
        let chunk = self.slot() as usize / CHUNK;
        generations[chunk] == (self.0 >> 32) as Generation
    }
}

#[derive(Debug, Default)]
pub(crate) struct Locator {
    /// By chunk. Changes when it is freed, or written where it was written before.
    generations: Vec<Generation>,
    buckets: Vec<Vec<Entry>>,
    /// The newest entries, not yet in their buckets.
    pending: Vec<Entry>,
    /// The largest power of two that is not above the number of buckets, minus 1.
    mask: usize,
    entries: usize,
    /// Of those, the ones that tidying all buckets left: blocks may be gone whose chunk is written no further.
    kept: usize,
    /// Entries that the buckets have room for.
    room: usize,
    /// Next bucket to tidy.
    cursor: usize,
}

impl Locator {
    fn bucket(&self, hash: usize) -> usize {
        let wide = hash & (self.mask << 1 | 1);
        if wide < self.buckets.len() {
            wide
        } else {
            hash & self.mask
        }
    }

    /// Makes room for one more chunk.
    pub fn add_chunk(&mut self) {
        self.generations.push(0);
    }

    /// All entries of a chunk are invalid from now on.
    pub fn forget_chunk(&mut self, chunk: ChunkId) {
        let generation = &mut self.generations[chunk as usize];
        *generation = generation.wrapping_add(1);
    }

    /// Writes that `hashes` stand at `slot` and after it, in one chunk.
    pub fn log(&mut self, hashes: &[u64], slot: Slot) {
        let generation = self.generations[slot as usize / CHUNK];
        let new = (slot..).zip(hashes);
        self.pending
            .extend(new.map(|(slot, &hash)| Entry::new(hash, generation, slot)));
        self.entries += hashes.len();
    }

    fn flush(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for entry in pending.drain(..) {
            let number = self.bucket(entry.tag());
            let bucket = &mut self.buckets[number];
            if bucket.len() < bucket.capacity() {
                bucket.push(entry);
            } else {
                self.push_full(number, entry);
            }
        }
        self.pending = pending;
    }

    #[cold]
    fn push_full(&mut self, number: usize, entry: Entry) {
        self.compact(number);
        let bucket = &mut self.buckets[number];
        self.room -= bucket.capacity();
        // With less room, each entry would be looked at more often; with more, memory would lie idle.
        bucket.reserve_exact((bucket.len() * 3 / 4).max(ROOM));
        bucket.push(entry);
        self.room += bucket.capacity();
    }

    fn compact(&mut self, number: usize) {
        let bucket = &mut self.buckets[number];
        let before = bucket.len();
        // Without a branch on what half of the entries are: twice as fast as `retain`.
        let mut kept = 0;
        for index in 0..before {
            let entry = bucket[index];
            bucket[kept] = entry;
            kept += usize::from(entry.is_valid(&self.generations));
        }
        bucket.truncate(kept);
        self.entries -= before - kept;
        self.kept = self.kept.min(self.entries);
    }

    /// Gives half of the next bucket to a new one.
    fn split(&mut self) {
        let new = self.buckets.len();
        if new > self.mask << 1 | 1 {
            self.mask = self.mask << 1 | 1;
        }
        let wide = self.mask << 1 | 1;
        let bucket = &mut self.buckets[new & self.mask];
        // Written to both and counted in one: which one is a coin toss that no branch should guess.
        let mut go = bucket.clone();
        let (mut kept, mut gone) = (0, 0);
        for index in 0..bucket.len() {
            let entry = bucket[index];
            let goes = entry.tag() & wide == new;
            bucket[kept] = entry;
            go[gone] = entry;
            kept += usize::from(!goes);
            gone += usize::from(goes);
        }
        bucket.truncate(kept);
        go.truncate(gone);
        self.room += go.capacity();
        self.buckets.push(go);
    }

    /// Gives the last bucket's entries back to the one they came from.
    fn unsplit(&mut self) {
        let Some(mut last) = self.buckets.pop() else {
            return;
        };
        let number = self.buckets.len() & self.mask;
        let bucket = &mut self.buckets[number];
        self.room -= last.capacity() + bucket.capacity();
        bucket.append(&mut last);
        self.room += bucket.capacity();
        if self.buckets.len() == self.mask + 1 {
            self.mask >>= 1;
        }
    }

    /// Whether there is something to tidy, with so many blocks.
    pub fn is_untidy(&self, live: usize) -> bool {
        self.pending.len() >= PENDING
            || self.is_short(live)
            || self.is_sparse(live)
            || self.is_stale(live)
    }

    /// Of buckets.
    fn is_short(&self, live: usize) -> bool {
        live > self.buckets.len() * LONG && self.buckets.len() < MAX_BUCKETS
    }

    fn is_sparse(&self, live: usize) -> bool {
        self.buckets.len() > 1 && live < self.buckets.len() * LONG / 4
    }

    /// Entries that can be dropped outnumber the blocks.
    fn is_stale(&self, live: usize) -> bool {
        self.entries > 2 * live.max(self.kept) + SLACK
    }

    /// Puts new entries into their buckets, makes as many of those as `live` blocks need, and drops invalid entries
    /// until they no longer outnumber the blocks.
    pub fn tidy(&mut self, live: usize) {
        if self.buckets.is_empty() {
            self.buckets.push(Vec::new());
        }
        while self.is_short(live) {
            self.split();
        }
        if self.pending.len() >= PENDING {
            self.flush();
        }
        for _ in 0..self.buckets.len() {
            if self.is_sparse(live) {
                self.unsplit();
            }
            if !self.is_stale(live) {
                return;
            }
            self.cursor = (self.cursor + 1) % self.buckets.len();
            let number = self.cursor;
            self.compact(number);
            let bucket = &mut self.buckets[number];
            self.room -= bucket.capacity();
            bucket.shrink_to(bucket.len() * 5 / 4);
            self.room += bucket.capacity();
        }
        self.kept = self.entries;
    }

    /// Places with these bits of the hash, the newest first.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Slot> {
        let bucket = self.buckets.get(self.bucket(hash as usize));
        newest(&self.pending, hash)
            .chain(newest(bucket.map_or(&[], Vec::as_slice), hash))
            .filter(|entry| entry.is_valid(&self.generations))
            .map(Entry::slot)
    }

    pub fn size_bytes(&self) -> usize {
        let buckets = self.buckets.capacity() * size_of::<Vec<Entry>>();
        self.room * size_of::<Entry>() + buckets + self.generations.capacity()
    }
}

/// The entries with these bits of the hash, from the last one back.
fn newest(entries: &[Entry], hash: u64) -> impl Iterator<Item = Entry> + '_ {
    // Without a branch for each entry, several are compared by one instruction.
    let has_any = move |piece: &&[Entry]| {
        let each = piece.iter().map(|entry| entry.has_tag_of(hash));
        each.fold(false, |any, is| any | is)
    };
    let pieces = entries.rchunks(AT_ONCE).filter(has_any);
    let backwards = pieces.flat_map(|piece| piece.iter().rev());
    backwards
        .copied()
        .filter(move |entry| entry.has_tag_of(hash))
}
