//! What two processes say about a tree: the messages of `proto/prefixlb/v1/delta.proto`.
//!
//! Written out as structs for prost, so that a build needs no protoc; a test compares them with the
//! descriptors that protoc makes.

mod stored;

pub use stored::Stored;

use prost::Message;

/// See `Removed` in delta.proto.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Removed {
    /// The deepest block removed.
    #[prost(fixed64, tag = "1")]
    pub last: u64,
    /// How many blocks, `last` and those before it.
    #[prost(uint32, tag = "2")]
    pub count: u32,
    /// The first of them; 0 if `count` is 1.
    #[prost(fixed64, tag = "3")]
    pub first: u64,
    /// Wrapping sum of them; 0 if `count` is 1.
    #[prost(fixed64, tag = "4")]
    pub digest: u64,
}

impl Removed {
    /// A range of `count` blocks, at least one, from `first` to `last`; `sum` is theirs, wrapping.
    pub fn new(first: u64, last: u64, count: u32, sum: u64) -> Self {
        let (first, digest) = if count > 1 { (first, sum) } else { (0, 0) };
        Self {
            last,
            count,
            first,
            digest,
        }
    }

    /// The range of these blocks, in chain order; None if there are none, or 2^32.
    pub fn of(hashes: &[u64]) -> Option<Self> {
        let (&first, &last) = (hashes.first()?, hashes.last()?);
        let sum = hashes
            .iter()
            .fold(0, |sum: u64, &hash| sum.wrapping_add(hash));
        Some(Self::new(
            first,
            last,
            u32::try_from(hashes.len()).ok()?,
            sum,
        ))
    }

    /// Wrapping sum of its blocks.
    pub fn sum(&self) -> u64 {
        if self.count == 1 {
            self.last
        } else {
            self.digest
        }
    }
}

/// See `Cleared` in delta.proto.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Cleared {}

/// See `Expected` in delta.proto.
#[derive(Clone, PartialEq, Message)]
pub struct Expected {
    /// Names the announcement within the epoch.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Whole blocks of the prompt before the run.
    #[prost(uint32, tag = "2")]
    pub start: u32,
    /// Those that are to be computed, in chain order.
    #[prost(fixed64, repeated, tag = "3")]
    pub hashes: Vec<u64>,
}

/// See `Dropped` in delta.proto.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Dropped {
    /// Of the announcement.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// One change of a tree, or of what waits to be stored in it.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Event {
    /// Blocks came.
    #[prost(message, tag = "1")]
    Stored(Stored),
    /// Blocks went.
    #[prost(message, tag = "2")]
    Removed(Removed),
    /// All blocks went.
    #[prost(message, tag = "3")]
    Cleared(Cleared),
    /// Blocks will come.
    #[prost(message, tag = "4")]
    Expected(Expected),
    /// They will not.
    #[prost(message, tag = "5")]
    Dropped(Dropped),
}

/// The message around an [`Event`].
#[derive(Clone, PartialEq, Message)]
pub struct DeltaEvent {
    /// `None` is an event this version does not know.
    #[prost(oneof = "Event", tags = "1, 2, 3, 4, 5")]
    pub event: Option<Event>,
}

/// See `LoadClass` in delta.proto.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LoadClass {
    /// Requests with `[2^log2, 2^(log2+1))` remaining tokens.
    #[prost(uint32, tag = "1")]
    pub log2: u32,
    /// How many.
    #[prost(uint32, tag = "2")]
    pub requests: u32,
    /// Their remaining tokens.
    #[prost(uint64, tag = "3")]
    pub tokens: u64,
}

/// Order in which a replica takes waiting prefills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum PrefillOrder {
    /// Not said.
    Unspecified = 0,
    /// Least remaining uncached tokens first, aged.
    Shortest = 1,
    /// First come, first served.
    Fcfs = 2,
}

/// See `Load` in delta.proto.
#[derive(Clone, PartialEq, Message)]
pub struct Load {
    /// Requests being decoded.
    #[prost(uint32, tag = "1")]
    pub running: u32,
    /// Requests whose prefill is not complete.
    #[prost(uint32, tag = "2")]
    pub waiting: u32,
    /// Their tokens that are neither cached nor computed.
    #[prost(uint64, tag = "3")]
    pub pending_tokens: u64,
    /// The same by size.
    #[prost(message, repeated, tag = "4")]
    pub classes: Vec<LoadClass>,
    /// Which goes first.
    #[prost(enumeration = "PrefillOrder", tag = "5")]
    pub order: i32,
    /// Slots nobody uses.
    #[prost(uint64, tag = "6")]
    pub free_slots: u64,
    /// Slots of cached tokens nobody locks.
    #[prost(uint64, tag = "7")]
    pub evictable_slots: u64,
    /// All slots.
    #[prost(uint64, tag = "8")]
    pub total_slots: u64,
    /// Takes nothing new.
    #[prost(bool, tag = "9")]
    pub draining: bool,
    /// Prompt tokens that a step computes at most; 0 if it does not say.
    #[prost(uint64, tag = "10")]
    pub chunk_tokens: u64,
    /// As measured; 0 if it does not say.
    #[prost(uint64, tag = "11")]
    pub prefill_tokens_per_s: u64,
}

/// See `DeltaBatch` in delta.proto.
#[derive(Clone, PartialEq, Message)]
pub struct DeltaBatch {
    /// One life of the tree; never 0.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    /// 1, 2, 3, ... within the epoch.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// Tokens in a block.
    #[prost(uint32, tag = "3")]
    pub block_size: u32,
    /// Names the chain hash.
    #[prost(uint32, tag = "4")]
    pub hash_version: u32,
    /// What changed, in order.
    #[prost(message, repeated, tag = "5")]
    pub events: Vec<DeltaEvent>,
    /// What the replica has to do.
    #[prost(message, optional, tag = "6")]
    pub load: Option<Load>,
    /// Blocks in the tree after this batch.
    #[prost(uint64, tag = "7")]
    pub count: u64,
    /// Wrapping sum of their hashes.
    #[prost(fixed64, tag = "8")]
    pub digest: u64,
}

/// The events alone, as they stand in a serialised [`DeltaBatch`]: appended to a serialised header they
/// make a whole batch, since concatenating serialised messages merges them.
pub fn encode_events(events: Vec<Event>) -> Vec<u8> {
    let events = events
        .into_iter()
        .map(|event| DeltaEvent { event: Some(event) })
        .collect();
    DeltaBatch {
        events,
        ..DeltaBatch::default()
    }
    .encode_to_vec()
}
