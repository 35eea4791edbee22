//! Hashes, some at a time.

/// Blocks in a chunk; in tests so few that small trees have many.
pub(crate) const CHUNK: usize = if cfg!(test) { 4 } else { 32 };

/// Names a chunk of the index; used again after it is freed.
pub(crate) type ChunkId = u32;

/// Memory of a chunk.
pub(crate) type Hashes = Box<[u64; CHUNK]>;

/// Neighbours in a run, at places that neighbouring runs do not use. Long enough that its allocation costs little
/// a block, short enough that a run wastes little at its ends.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub id: ChunkId,
    pub hashes: Hashes,
}

impl Chunk {
    /// `hashes`: whatever they were.
    pub fn new(id: ChunkId, hashes: Hashes) -> Self {
        Self { id, hashes }
    }

    pub fn get(&self, at: usize) -> u64 {
        self.hashes[at]
    }

    /// Writes `hashes` from `at` on.
    pub fn put(&mut self, at: usize, hashes: &[u64]) {
        self.hashes[at..at + hashes.len()].copy_from_slice(hashes);
    }

    /// The hashes from `from` to before `to`.
    pub fn range(&self, from: usize, to: usize) -> &[u64] {
        &self.hashes[from..to]
    }
}
