//! What happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Something that will happen.
#[derive(Debug)]
pub enum Event {
    /// A replica has computed the chunk it was at.
    ChunkEnds {
        /// Its number.
        replica: usize,
    },
    /// The last token of an answer.
    AnswerEnds {
        /// Its number.
        replica: usize,
        /// Its place in the trace.
        request: usize,
    },
    /// A replica sends what it has to say.
    Publishes {
        /// Its number.
        replica: usize,
    },
    /// A batch reaches a router.
    BatchComes {
        /// Its number.
        router: usize,
        /// Whose batch.
        replica: usize,
        /// As it was sent.
        batch: Rc<[u8]>,
    },
    /// A replica hears that a router wants a snapshot.
    SnapshotAsked {
        /// Who asks.
        router: usize,
        /// Who is asked.
        replica: usize,
    },
    /// It is there.
    SnapshotComes {
        /// Who asked.
        router: usize,
        /// Whose tree.
        replica: usize,
        /// As it was sent.
        batch: Rc<[u8]>,
    },
}

#[derive(Debug)]
struct Due {
    at_s: f64,
    /// Of two at one time the one entered first.
    number: u64,
    event: Event,
}

impl Due {
    fn key(&self) -> (u64, u64) {
        // Times are 0 or more, and the bits of such floats order as the floats do.
        (self.at_s.to_bits(), self.number)
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The events to come.
#[derive(Debug, Default)]
pub struct Agenda {
    number: u64,
    due: BinaryHeap<Reverse<Due>>,
}

impl Agenda {
    /// Enters an event.
    pub fn enter(&mut self, at_s: f64, event: Event) {
        debug_assert!(at_s >= 0.0, "{at_s}");
        self.number += 1;
        self.due.push(Reverse(Due {
            at_s,
            number: self.number,
            event,
        }));
    }

    /// Takes the first event up to a time.
    pub fn next(&mut self, until_s: f64) -> Option<(f64, Event)> {
        if self.due.peek()?.0.at_s > until_s {
            return None;
        }
        let Reverse(Due { at_s, event, .. }) = self.due.pop()?;
        Some((at_s, event))
    }
}
