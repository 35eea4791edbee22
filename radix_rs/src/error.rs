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
    /// There is no such policy.
    #[error("policy {0:?}: expected one of lru, lfu, slru, priority, tlru, fifo, mru, filo")]
    UnknownPolicy(String),
    /// The policy does not have this option.
    #[error("policy {policy}: unknown option {option:?}, known: {known}")]
    UnknownPolicyOption {
        /// Its name.
        policy: String,
        /// What was given.
        option: String,
        /// What it has.
        known: &'static str,
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

/// Wrong use of a router. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RouterError {
    /// Nobody added a replica of this name.
    #[error("unknown replica {0:?}")]
    UnknownReplica(String),
    /// A look at a mirror cannot go on there.
    #[error(
        "no branch of replica {replica:?} begins with block {block:016x} there: it went, or was joined to another"
    )]
    UnknownBranch {
        /// Its name.
        replica: String,
        /// Hash of the block.
        block: u64,
    },
    /// It was added before.
    #[error("replica {0:?} is known already; remove it first")]
    KnownReplica(String),
    /// Blocks have at least one token.
    #[error("replica {replica:?}: a block has 0 tokens, expected 1 or more")]
    EmptyBlock {
        /// Its name.
        replica: String,
    },
    /// All replicas of a model cut prompts into the same blocks.
    #[error(
        "replica {replica:?} has blocks of {found} tokens, the other replicas of model {model:?} of {expected}"
    )]
    ModelBlockSize {
        /// Its name.
        replica: String,
        /// The model both serve.
        model: String,
        /// Block size of the model.
        expected: u32,
        /// Block size of the replica.
        found: u32,
    },
    /// A batch speaks of other blocks than the replica was added with.
    #[error("batch of replica {replica:?} has blocks of {found} tokens, expected {expected}")]
    BatchBlockSize {
        /// Its name.
        replica: String,
        /// What the replica was added with.
        expected: u32,
        /// What the batch says.
        found: u32,
    },
    /// A batch names blocks by another hash.
    #[error("batch of replica {replica:?} has hash version {found}, expected {expected}")]
    HashVersion {
        /// Its name.
        replica: String,
        /// What this build speaks.
        expected: u32,
        /// What the batch says.
        found: u32,
    },
    /// The bytes are no batch, or say what no batch can.
    #[error("malformed batch of replica {replica:?}: {why}")]
    Malformed {
        /// Its name.
        replica: String,
        /// What is wrong.
        why: String,
    },
    /// A snapshot goes into a cleared mirror only.
    #[error(
        "snapshot for replica {replica:?}, whose mirror is at epoch {epoch:x} seq {seq}; clear it first"
    )]
    NotCleared {
        /// Its name.
        replica: String,
        /// Epoch of the mirror.
        epoch: u64,
        /// Seq of the mirror.
        seq: u64,
    },
    /// The chunks of one snapshot share epoch and seq.
    #[error(
        "snapshot chunk of replica {replica:?} is of epoch {:x} seq {}, those before it of epoch {:x} seq {}",
        found.0, found.1, expected.0, expected.1
    )]
    SnapshotChanged {
        /// Its name.
        replica: String,
        /// Epoch and seq of the first chunk.
        expected: (u64, u64),
        /// Epoch and seq of this one.
        found: (u64, u64),
    },
    /// An invariant does not hold; see [`crate::index::Index::check`].
    #[error("broken invariant: {0}")]
    Broken(String),
}

/// A tokenizer or chat template that cannot be used, or a text they refuse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// Not the JSON of a tokenizer.
    #[error("tokenizer.json cannot be read: {0}")]
    Tokenizer(String),
    /// Its tokens are not bytes.
    #[error("tokenizer decoder is not supported, only ByteLevel")]
    NotByteLevel,
    /// Text prompts want a token that is not there.
    #[error("the begin-of-sequence token {0:?} is not in the vocabulary")]
    NoBos(String),
    /// Not a template, or one that asks for more than there is.
    #[error("the chat template cannot be compiled: {0}")]
    Template(String),
    /// A chat needs one.
    #[error("the model has no chat template; send text or token ids")]
    NoTemplate,
    /// A chat has at least one message.
    #[error("the chat has no messages, expected at least 1")]
    NoMessages,
    /// It raised, or an expression in it failed.
    #[error("the model's chat template refused the chat: {0}")]
    Chat(String),
    /// A prompt has at least one token.
    #[error("the prompt is empty, expected at least 1 token")]
    Empty,
    /// The tokenizer or template has a defect.
    #[error("the tokenizer failed")]
    Panicked,
    /// The tokenizer failed.
    #[error("the text cannot be tokenised: {0}")]
    Refused(String),
}
