//! The policies by name.

use std::str::FromStr;

use super::candidate::{Candidate, lowest, ordered};
use super::least_load;
use super::random::Random;
use super::round_robin::RoundRobin;
use crate::index::ReplicaId;

/// Which rule picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Lowest cost, as in `cost.rs`.
    Cost,
    /// Each in turn.
    RoundRobin,
    /// Any, with the same chance.
    Random,
    /// Fewest requests.
    LeastLoad,
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "cost" => Ok(Self::Cost),
            "round_robin" => Ok(Self::RoundRobin),
            "random" => Ok(Self::Random),
            "least_load" => Ok(Self::LeastLoad),
            _ => Err(format!(
                "unknown policy {name:?}, expected cost, round_robin, random or least_load"
            )),
        }
    }
}

/// A policy with what it remembers.
#[derive(Debug)]
pub(crate) enum Policy {
    Cost,
    RoundRobin(RoundRobin),
    Random,
    LeastLoad,
}

impl Policy {
    pub fn new(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Cost => Self::Cost,
            PolicyKind::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            PolicyKind::Random => Self::Random,
            PolicyKind::LeastLoad => Self::LeastLoad,
        }
    }

    /// The place of the candidate to pick; None of none.
    pub fn choose(&self, candidates: &[Candidate], random: &mut Random) -> Option<usize> {
        match self {
            // Equal costs: where this router has least, then where new blocks push out least.
            Self::Cost => lowest(candidates, random, |c| {
                (ordered(c.terms.cost), c.in_flight, ordered(c.fill))
            }),
            Self::RoundRobin(turns) => turns.choose(candidates),
            Self::Random => lowest(candidates, random, |_| ()),
            Self::LeastLoad => least_load::choose(candidates, random),
        }
    }

    /// A prompt goes there.
    pub fn picked(&mut self, id: ReplicaId) {
        if let Self::RoundRobin(turns) = self {
            turns.picked(id);
        }
    }

    /// Whether prefixes decide.
    pub fn sees_prefixes(&self) -> bool {
        matches!(self, Self::Cost)
    }
}
