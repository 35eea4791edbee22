//! Where a block is: from its hash to its run.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// A run's number in the arena; changes when runs are split or merged.
pub(crate) type RunId = u32;

/// A block's place: its run, and its position, from which the run's `start` gives the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub run: RunId,
    pub position: u32,
}

/// Every block of the index has one entry. Callers only `find`, `put` and `forget`, so that a thinner map
/// (ends of runs and samples) can take its place.
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    map: HashMap<u64, At, BuildHasherDefault<Identity>>,
}

impl BlockMap {
    pub fn find(&self, hash: u64) -> Option<At> {
        self.map.get(&hash).copied()
    }

    /// Moves or adds a block.
    pub fn put(&mut self, hash: u64, at: At) {
        self.map.insert(hash, at);
    }

    /// Adds a block; false, and nothing changed, if it is known.
    pub fn put_new(&mut self, hash: u64, at: At) -> bool {
        match self.map.entry(hash) {
            Entry::Vacant(vacant) => {
                vacant.insert(at);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    pub fn forget(&mut self, hash: u64) {
        self.map.remove(&hash);
        // A table that shrank to a quarter gives its memory back; halving then leaves room to grow again.
        if self.map.len() * 4 < self.map.capacity() && self.map.capacity() > 1024 {
            self.map.shrink_to(self.map.len() * 2);
        }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes of the table: an entry and a control byte for each bucket, 7 of 8 of which count as capacity.
    pub fn size_bytes(&self) -> usize {
        self.map.capacity() * 8 / 7 * (size_of::<(u64, At)>() + 1)
    }
}

/// Block hashes come out of a keyed pseudo-random function: hashing them again would gain nothing.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
