//! One error enum for each part.

use thiserror::Error;

/// Wrong use of a tree. Raised before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TreeError {
    /// A tree cannot have such pages and blocks.
    #[error(
        "page_size {page_size}, block_size {block_size}: both must be at least 1 and at most {max}, \
         and block_size a multiple of page_size",
        max = u32::MAX
    )]
    Sizes {
        /// Tokens in a page.
        page_size: usize,
        /// Tokens in a block.
        block_size: usize,
    },
    /// Positions are u32.
    #[error("a key of {tokens} tokens: at most {max} are possible", max = u32::MAX)]
    KeyTooLong {
        /// Tokens of the key.
        tokens: usize,
    },
    /// The handle names no node: the node was evicted, or never was.
    #[error("unknown node {0}: evicted, reset, or never a node of this tree")]
    UnknownNode(u64),
    /// The receipt was used, or never given out.
    #[error("unknown receipt {0}: unlocked before, or never given out by this tree")]
    UnknownReceipt(u64),
    /// Every token needs a slot.
    #[error("slots: expected at least {tokens}, one for each token, got {slots}")]
    SlotsTooShort {
        /// Tokens of the key.
        tokens: usize,
        /// Slots given.
        slots: usize,
    },
    /// The caller believes the tree to hold what it does not.
    #[error("owned_from {owned_from}: the tree holds only {held} tokens of this key")]
    NotHeld {
        /// Where the caller's own slots begin.
        owned_from: usize,
        /// Tokens of the key in the tree.
        held: usize,
    },
    /// A locked tree cannot be reset.
    #[error("reset while {locks} locks are held")]
    Locked {
        /// Live receipts.
        locks: usize,
    },
    /// A chunk holds at least one block.
    #[error("max_blocks: expected at least 1, got 0")]
    EmptyChunk,
    /// An invariant does not hold: a defect of the tree.
    #[error("broken invariant: {0}")]
    Broken(String),
}
