//! Hashes in chunks that several trees can share.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks in a chunk.
pub(crate) const CHUNK: usize = 32;

/// Names a chunk of the writer's tree; used again after it is freed.
pub(crate) type ChunkId = u32;

/// A run's blocks at positions that fill `CHUNK`.
///
/// The writer alone changes it, while readers may look at an older state of the run: they see its old hash or its
/// new one. Either is a true statement about a prefix, since a hash names all that lies before it, so no order
/// beyond that of single words is needed.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub id: ChunkId,
    hashes: [AtomicU64; CHUNK],
}

impl Chunk {
    pub fn new(id: ChunkId) -> Arc<Self> {
        Arc::new(Self {
            id,
            hashes: array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    pub fn get(&self, at: usize) -> u64 {
        self.hashes[at].load(Ordering::Relaxed)
    }

    /// Writes `hashes` from `at` on.
    pub fn put(&self, at: usize, hashes: &[u64]) {
        for (slot, &hash) in self.hashes[at..].iter().zip(hashes) {
            slot.store(hash, Ordering::Relaxed);
        }
    }

    /// The hashes from `from` to before `to`.
    pub fn range(&self, from: usize, to: usize) -> impl Iterator<Item = u64> + '_ {
        let slots = self.hashes[from..to].iter();
        slots.map(|slot| slot.load(Ordering::Relaxed))
    }
}
