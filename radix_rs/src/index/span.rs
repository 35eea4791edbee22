//! The blocks of a run: a list of chunks, seen as one sequence.

use super::chunk::{CHUNK, Chunk};

/// A sequence of hashes. Its first block lies at `skew` in its first chunk, so that a run and the one that follows
/// it fill the chunk they meet in together, and joining and splitting moves a part of that chunk at most.
#[derive(Debug, Default)]
pub(crate) struct Span {
    pub chunks: Vec<Chunk>,
    pub skew: usize,
    pub len: usize,
    /// Hash of the last block, kept here because most comparisons need no other.
    pub last: u64,
}

impl Span {
    /// An empty sequence whose first block will lie at `skew`.
    pub fn at(skew: usize) -> Self {
        Self {
            skew,
            ..Self::default()
        }
    }

    /// Where the next block goes: its place in its chunk.
    pub fn end(&self) -> usize {
        (self.skew + self.len) % CHUNK
    }

    pub fn get(&self, index: usize) -> u64 {
        let at = self.skew + index;
        self.chunks[at / CHUNK].get(at % CHUNK)
    }

    pub fn first(&self) -> u64 {
        self.get(0)
    }

    /// The hashes from `from` to before `to`, which is above, a chunk's at a time.
    pub fn pieces(&self, from: usize, to: usize) -> impl Iterator<Item = &[u64]> {
        let (from, to) = (self.skew + from, self.skew + to);
        let first = from / CHUNK;
        let chunks = self.chunks[first..to.div_ceil(CHUNK).max(first)].iter();
        (first..).zip(chunks).map(move |(number, chunk)| {
            let base = number * CHUNK;
            chunk.range(from.max(base) - base, to.min(base + CHUNK) - base)
        })
    }

    /// The same, one by one.
    pub fn range(&self, from: usize, to: usize) -> impl Iterator<Item = u64> + '_ {
        self.pieces(from, to).flatten().copied()
    }

    /// How many of `hashes` stand here from `from` on, each one compared.
    pub fn same(&self, from: usize, hashes: &[u64]) -> usize {
        let mut rest = hashes;
        for piece in self.pieces(from, self.len.min(from + hashes.len())) {
            let (now, later) = rest.split_at(piece.len());
            if piece != now {
                let same = piece.iter().zip(now).take_while(|(a, b)| a == b);
                return hashes.len() - rest.len() + same.count();
            }
            rest = later;
        }
        hashes.len() - rest.len()
    }

    /// The same for a chain: its last hash decides for all, and where the two part is found by bisection.
    pub fn common(&self, chain: &[u64]) -> usize {
        let len = self.len.min(chain.len());
        let last = if len == self.len {
            self.last
        } else {
            self.get(len - 1)
        };
        if last == chain[len - 1] {
            return len;
        }
        super::bisect(len - 1, |index| self.get(index) == chain[index])
    }

    /// Bytes of its list of chunks.
    pub fn list_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
    }
}
