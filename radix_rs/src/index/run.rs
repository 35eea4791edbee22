//! One edge of the tree: a run of blocks in chain order, who holds how much of it, and where it hangs.

use std::sync::atomic::{AtomicU32, Ordering};

use super::holders::Holders;
use super::queue::Place;
use super::replica_set::ReplicaId;
use super::span::Span;

/// A run's number in the arena. A cut leaves it to the rest, a join to the child.
pub(crate) type RunId = u32;

/// When something was used: counted in stores, wraps around.
pub(crate) type Tick = u32;

/// A run of blocks without a branch inside.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Never empty while the run lives.
    pub span: Span,
    pub holders: Holders,
    /// The run before it; None at the start of a prompt, or when it is not known.
    pub parent: Option<RunId>,
    /// The publisher named a parent that is not known.
    pub orphan: bool,
    /// Runs whose parent this is.
    pub children: u32,
    /// One of them; it leads to the others.
    pub first_child: Option<RunId>,
    /// Its neighbours among its parent's children.
    pub before: Option<RunId>,
    pub after: Option<RunId>,
    /// When it, or a run that followed it, was last stored or matched.
    pub used: AtomicU32,
    /// Where it stands among the runs that may be forgotten, if it does.
    pub place: Option<Place>,
    /// Of its bytes beyond its own size, those that the index has counted.
    pub counted_bytes: usize,
}

impl Run {
    pub fn len(&self) -> usize {
        self.span.len
    }

    pub fn is_alive(&self) -> bool {
        self.span.len > 0
    }

    /// Whether the replica holds all of it and nobody else any.
    pub fn is_only_of(&self, replica: ReplicaId) -> bool {
        self.holders.partial.is_empty() && self.holders.whole.is_exactly(replica)
    }

    pub fn last_used(&self) -> Tick {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes that it is used now. Readers do so, too: one that comes late loses nothing but a little order.
    pub fn touch(&self, now: Tick) {
        if self.last_used() != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// Bytes beyond its own size, chunks apart.
    pub fn heap_bytes(&self) -> usize {
        self.span.list_bytes() + self.holders.size_bytes()
    }
}
