//! What a router says of a pick, a breaker, a mirror.

use super::breaker::BreakerState;
use super::candidate::Candidate;

/// Why a replica was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It holds or expects the longest prefix.
    Prefix,
    /// Another one holds or expects more, but costs more.
    Load,
    /// Nobody holds or expects any of it.
    Cold,
    /// The policy does not look at prefixes.
    Policy,
}

impl Reason {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Prefix, Self::Load, Self::Cold, Self::Policy];

    /// Its name in the Python face.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Load => "load",
            Self::Cold => "cold",
            Self::Policy => "policy",
        }
    }
}

/// Where a prompt goes; in tokens unless the name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Name of the picked replica.
    pub replica: String,
    /// Of the prompt, in the picked replica's mirror.
    pub matched: u64,
    /// The longest match among those that could be picked.
    pub available: u64,
    /// What decided.
    pub reason: Reason,
    /// Names the prompt while it is in flight; 0 if it is not.
    pub ticket: u64,
}

/// One replica's side of a pick, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Its name.
    pub replica: String,
    /// Can be picked, even if others are there.
    pub eligible: bool,
    /// Of its breaker.
    pub breaker: BreakerState,
    /// Its figures.
    pub candidate: Candidate,
}

/// A replica's breaker, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerReading {
    /// What it is now.
    pub state: BreakerState,
    /// How often it opened.
    pub openings: u64,
}

/// The figures of one replica's mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorStats {
    /// 0: nothing is known.
    pub epoch: u64,
    /// The last batch it holds.
    pub seq: u64,
    /// Blocks of the replica, by its mirror: those in it and those that the bound made it forget.
    pub count: u64,
    /// Their digest.
    pub digest: u64,
    /// Those that were forgotten.
    pub forgotten: u64,
}
