//! Where a prompt should go.
//!
//! [`Router`] joins the index, the replicas' load, the prompts in flight and a policy. It does no I/O and asks no
//! clock: what it decides follows from its arguments and its seed.

#[cfg(test)]
mod announced_tests;
mod answers;
mod batch;
#[cfg(test)]
mod batch_tests;
mod block_set;
mod breaker;
#[cfg(test)]
mod breaker_tests;
mod browse;
mod cache_aware;
mod candidate;
mod choice;
#[cfg(test)]
mod choice_tests;
mod coming;
mod consistent_hash;
mod core;
mod cost;
mod finds;
#[cfg(test)]
mod finds_tests;
mod fleet;
mod in_flight;
mod least_load;
mod load;
mod pending;
mod policy;
#[cfg(test)]
mod policy_tests;
mod power_of_two;
mod random;
mod round_robin;
mod router;
#[cfg(test)]
mod test_fleet;
#[cfg(test)]
mod tests;
mod turns;

pub use answers::{BreakerReading, Explained, MirrorStats, Pick, Reason};
pub use batch::Applied;
pub use block_set::BlockSet;
pub use breaker::{BreakerLimits, BreakerState};
pub use browse::Branches;
pub use cache_aware::Thresholds;
pub use candidate::Candidate;
pub(crate) use core::Hashed;
pub use cost::{Terms, Weights};
pub use policy::{PolicyKind, Rules};
pub(crate) use random::{Random, mix};
pub use router::{Prompt, Router, Settings};
