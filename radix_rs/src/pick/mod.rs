//! Where a prompt should go.
//!
//! [`Router`] joins the index, the replicas' load, the prompts in flight and a policy. It does no I/O and asks no
//! clock: what it decides follows from its arguments and its seed.

#[cfg(test)]
mod announced_tests;
mod batch;
mod candidate;
mod core;
mod cost;
mod fleet;
mod in_flight;
mod least_load;
mod load;
mod pending;
mod policy;
mod random;
mod round_robin;
mod router;
#[cfg(test)]
mod tests;
mod turns;

pub use self::core::{Explained, MirrorStats, Pick, Reason};
pub use batch::Applied;
pub use candidate::Candidate;
pub use cost::{Terms, Weights};
pub use policy::PolicyKind;
pub use router::{Prompt, Router, Settings};
