//! One edge of the tree: a run of blocks in chain order, who holds how much of it, and where it hangs.

use super::holders::Holders;
use super::span::Span;

/// A run's number in the arena. A cut leaves it to the rest, a join to the child.
pub(crate) type RunId = u32;

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
    /// Exclusive or of their numbers: names the only child when there is one.
    pub child_xor: RunId,
}

impl Run {
    pub fn len(&self) -> usize {
        self.span.len
    }

    pub fn is_alive(&self) -> bool {
        self.span.len > 0
    }
}
