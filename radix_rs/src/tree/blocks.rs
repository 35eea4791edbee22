//! What the outside is told: which blocks came and went, how many there are, and their digest.

use super::length::to_u32;
use crate::chain::NO_PARENT;
use crate::delta::{Cleared, Event, Removed, Stored};

/// Events since the last drain, and the count and digest of all blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockLog {
    events: Vec<Event>,
    /// The block before those of a `Removed` that ends `events`: a removal of it extends the event.
    before_removed: Option<u64>,
    stored: u64,
    removed: u64,
    pub count: u64,
    pub digest: u64,
}

/// Changes since the previous drain.
#[derive(Clone, Debug, PartialEq)]
pub struct Deltas {
    /// In order; never empty.
    pub events: Vec<Event>,
    /// Blocks stored by these events.
    pub stored: u64,
    /// Blocks removed by these events, those of a `Cleared` apart.
    pub removed: u64,
    /// Blocks in the tree after them.
    pub count: u64,
    /// Wrapping sum of their hashes.
    pub digest: u64,
}

impl BlockLog {
    /// `hashes` follow each other, the first follows `parent`.
    pub fn store(&mut self, parent: Option<u64>, hashes: &[u64]) {
        if hashes.is_empty() {
            return;
        }
        self.stored += hashes.len() as u64;
        self.count += hashes.len() as u64;
        self.digest = self.digest.wrapping_add(sum(hashes.iter().copied()));
        push_run(&mut self.events, parent, hashes);
    }

    /// `hashes` follow each other, the first follows `parent`; nothing follows the last any more.
    pub fn remove(
        &mut self,
        parent: Option<u64>,
        hashes: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator,
    ) {
        let removed = hashes.len();
        let mut ends = None;
        let mut sum = 0u64;
        for hash in hashes {
            sum = sum.wrapping_add(hash);
            ends = Some((ends.map_or(hash, |(first, _)| first), hash));
        }
        let Some((first, last)) = ends else { return };
        self.removed += removed as u64;
        self.count -= removed as u64;
        self.digest = self.digest.wrapping_sub(sum);
        match self.events.last_mut() {
            Some(Event::Removed(event)) if self.before_removed == Some(last) => {
                let sum = event.sum().wrapping_add(sum);
                *event = Removed::new(first, event.last, event.count + to_u32(removed), sum);
            }
            _ => {
                let range = Removed::new(first, last, to_u32(removed), sum);
                self.events.push(Event::Removed(range));
            }
        }
        self.before_removed = parent;
    }

    /// All blocks are gone; so is what was said of them before.
    pub fn clear(&mut self) {
        *self = Self {
            events: vec![Event::Cleared(Cleared {})],
            ..Self::default()
        };
    }

    pub fn drain(&mut self) -> Option<Deltas> {
        if self.events.is_empty() {
            return None;
        }
        Some(Deltas {
            events: std::mem::take(&mut self.events),
            stored: std::mem::take(&mut self.stored),
            removed: std::mem::take(&mut self.removed),
            count: self.count,
            digest: self.digest,
        })
    }
}

/// Append a run, or extend the last event where the run continues it.
fn push_run(events: &mut Vec<Event>, parent: Option<u64>, hashes: &[u64]) {
    match events.last_mut() {
        Some(Event::Stored(last)) if last.hashes.last().copied() == parent => {
            last.hashes.extend_from_slice(hashes);
        }
        _ => events.push(Event::Stored(Stored {
            parent: parent.unwrap_or(NO_PARENT),
            hashes: hashes.to_vec(),
        })),
    }
}

pub(super) fn sum(hashes: impl Iterator<Item = u64>) -> u64 {
    hashes.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parent: u64, hashes: &[u64]) -> Event {
        Event::Stored(Stored {
            parent,
            hashes: hashes.to_vec(),
        })
    }

    fn removed(hashes: &[u64]) -> Event {
        Event::Removed(Removed::of(hashes).unwrap())
    }

    #[test]
    fn runs_that_continue_each_other_are_one_event() {
        let mut log = BlockLog::default();
        log.store(None, &[1, 2]);
        log.store(Some(2), &[3]);
        log.store(Some(2), &[4]);
        log.remove(Some(2), [4].into_iter());
        log.remove(Some(1), [2, 3].into_iter());
        log.remove(None, [1].into_iter());
        let deltas = log.drain().unwrap();
        assert_eq!(
            deltas.events,
            [
                stored(0, &[1, 2, 3]),
                stored(2, &[4]),
                removed(&[4]),
                removed(&[1, 2, 3])
            ]
        );
        assert_eq!((deltas.stored, deltas.removed), (4, 4));
        assert_eq!((deltas.count, deltas.digest), (0, 0));
        assert_eq!(log.drain(), None);
    }

    #[test]
    fn a_removal_is_not_joined_across_a_drain() {
        let mut log = BlockLog::default();
        log.store(None, &[1, 2]);
        log.remove(Some(1), [2].into_iter());
        log.drain().unwrap();
        log.remove(None, [1].into_iter());
        assert_eq!(log.drain().unwrap().events, [removed(&[1])]);
    }

    #[test]
    fn clear_forgets_what_was_not_drained() {
        let mut log = BlockLog::default();
        log.store(None, &[1, 2]);
        log.clear();
        log.store(None, &[3]);
        let deltas = log.drain().unwrap();
        assert_eq!(deltas.events, [Event::Cleared(Cleared {}), stored(0, &[3])]);
        assert_eq!((deltas.stored, deltas.count, deltas.digest), (1, 1, 3));
    }
}
