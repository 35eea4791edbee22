//! The trees of prefixlb and the pick: what a replica has cached, what a router believes it has, and where
//! a prompt should go.
//!
//! Nothing here does I/O. Only `py` sees Python; without the feature `python` the crate is plain Rust.

pub mod chain;
pub mod delta;
pub mod error;
pub mod index;
pub mod pick;
#[cfg(feature = "python")]
mod py;
pub mod sim;
pub mod tree;
