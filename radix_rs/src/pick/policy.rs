//! The policies by name.

use std::str::FromStr;

use super::breaker::BreakerLimits;
use super::cache_aware::{self, Thresholds};
use super::candidate::{Candidate, lowest};
use super::core::Hashed;
use super::cost::Weights;
use super::random::Random;
use super::round_robin::RoundRobin;
use super::{consistent_hash, cost, least_load, power_of_two};
use crate::index::ReplicaId;

/// Which rule picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Lowest cost.
    Cost,
    /// Each in turn.
    RoundRobin,
    /// Any, with the same chance.
    Random,
    /// Fewest requests.
    LeastLoad,
    /// Fewest requests of two drawn.
    PowerOfTwo,
    /// By the prompt's beginning, with bounded load.
    ConsistentHash,
    /// By thresholds of match and load.
    CacheAware,
}

impl PolicyKind {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::Cost,
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoad,
        Self::PowerOfTwo,
        Self::ConsistentHash,
        Self::CacheAware,
    ];

    /// As settings call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::ConsistentHash => "consistent_hash",
            Self::CacheAware => "cache_aware",
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown policy {name:?}, expected one of {known}")
        })
    }
}

/// By what a router picks; may change while it does.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Which rule picks.
    pub policy: PolicyKind,
    /// Of the cost; finite and not negative.
    pub weights: Weights,
    /// Of `cache_aware`.
    pub thresholds: Thresholds,
    /// Of `consistent_hash`: a replica's requests at most, in means of all; above 1.
    pub load_factor: f64,
    /// When replicas are passed over.
    pub breaker: BreakerLimits,
}

impl Rules {
    /// A policy with the usual weights.
    pub fn new(policy: PolicyKind) -> Self {
        Self {
            policy,
            weights: Weights::default(),
            thresholds: Thresholds::default(),
            load_factor: 1.25,
            breaker: BreakerLimits::default(),
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::new(PolicyKind::Cost)
    }
}

/// A policy with its settings and what it remembers.
#[derive(Debug)]
pub(crate) enum Policy {
    Cost,
    RoundRobin(RoundRobin),
    Random,
    LeastLoad,
    PowerOfTwo,
    ConsistentHash { load_factor: f64 },
    CacheAware(Thresholds),
}

impl Policy {
    pub fn new(rules: &Rules) -> Self {
        match rules.policy {
            PolicyKind::Cost => Self::Cost,
            PolicyKind::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            PolicyKind::Random => Self::Random,
            PolicyKind::LeastLoad => Self::LeastLoad,
            PolicyKind::PowerOfTwo => Self::PowerOfTwo,
            PolicyKind::ConsistentHash => Self::ConsistentHash {
                load_factor: rules.load_factor,
            },
            PolicyKind::CacheAware => Self::CacheAware(rules.thresholds),
        }
    }

    /// The place of the candidate to pick; None of none.
    pub fn choose(
        &self,
        prompt: &Hashed<'_>,
        candidates: &[Candidate],
        random: &mut Random,
    ) -> Option<usize> {
        match self {
            Self::Cost => cost::choose(candidates, random),
            Self::RoundRobin(turns) => turns.choose(candidates),
            Self::Random => lowest(candidates, random, |_| ()),
            Self::LeastLoad => least_load::choose(candidates, random),
            Self::PowerOfTwo => power_of_two::choose(candidates, random),
            Self::ConsistentHash { load_factor } => consistent_hash::choose(
                prompt.chain,
                prompt.block_size,
                *load_factor,
                candidates,
                random,
            ),
            Self::CacheAware(thresholds) => {
                cache_aware::choose(prompt.tokens, thresholds, candidates, random)
            }
        }
    }

    /// A prompt goes there.
    pub fn picked(&mut self, id: ReplicaId) {
        if let Self::RoundRobin(turns) = self {
            turns.picked(id);
        }
    }

    /// Whether costs decide.
    pub fn weighs_costs(&self) -> bool {
        matches!(self, Self::Cost)
    }

    /// Whether prefixes decide.
    pub fn sees_prefixes(&self) -> bool {
        matches!(self, Self::Cost | Self::CacheAware(_))
    }
}
