//! Hashes, some at a time.

/// Blocks in a chunk; in tests so few that small trees have many.
pub(crate) const CHUNK: usize = if cfg!(test) { 4 } else { 32 };

/// Names a chunk of the index; used again after it is freed.
pub(crate) type ChunkId = u32;

/// Neighbours in a run, at places that neighbouring runs do not use. Long enough that its allocation costs little
/// a block, short enough that a run wastes little at its ends.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub id: ChunkId,
    hashes: Box<[u64; CHUNK]>,
}

impl Chunk {
    /// In the memory of one that was freed, if there is one.
    pub fn new(id: ChunkId, spare: Option<Self>) -> Self {
        let hashes = spare.map_or_else(|| Box::new([0; CHUNK]), |spare| spare.hashes);
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
