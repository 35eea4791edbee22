//! From the first block of a run to the run: what a walk needs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use super::run::RunId;

/// A block that a publisher put below two parents may start two runs; the one that came first is found.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    map: HashMap<u64, RunId, BuildHasherDefault<Identity>>,
    /// Runs whose first block starts another run, too.
    hidden: Vec<(u64, RunId)>,
}

impl Starts {
    pub fn find(&self, hash: u64) -> Option<RunId> {
        self.map.get(&hash).copied()
    }

    pub fn add(&mut self, hash: u64, run: RunId) {
        match self.map.entry(hash) {
            Entry::Vacant(vacant) => {
                vacant.insert(run);
            }
            Entry::Occupied(_) => self.hidden.push((hash, run)),
        }
    }

    /// The start of run `from` is now that of `to`.
    pub fn pass(&mut self, hash: u64, from: RunId, to: RunId) {
        match self.map.get_mut(&hash) {
            Some(run) if *run == from => *run = to,
            _ => {
                self.unhide(hash, from);
                self.hidden.push((hash, to));
            }
        }
    }

    pub fn remove(&mut self, hash: u64, run: RunId) {
        if self.map.get(&hash) != Some(&run) {
            self.unhide(hash, run);
            return;
        }
        self.map.remove(&hash);
        if let Some(&(_, other)) = self.hidden.iter().find(|(start, _)| *start == hash) {
            self.unhide(hash, other);
            self.map.insert(hash, other);
        }
        // A table that shrank to a quarter gives its memory back; halving then leaves room to grow again.
        if self.map.len() * 4 < self.map.capacity() && self.map.capacity() > 1024 {
            self.map.shrink_to(self.map.len() * 2);
        }
    }

    fn unhide(&mut self, hash: u64, run: RunId) {
        self.hidden.retain(|&hidden| hidden != (hash, run));
    }

    /// Bytes of the table: an entry and a control byte for each bucket, 7 of 8 of which count as capacity.
    pub fn size_bytes(&self) -> usize {
        self.map.capacity() * 8 / 7 * (size_of::<(u64, RunId)>() + 1)
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
