//! Policy `cache_aware`: the threshold rule of the routers that came before, to compare with.
//!
//! As long as the load is even, a prompt goes where most of it is cached, if that is more than `cache` of it. Else,
//! and for as long as one replica has more than `balance_abs` requests beyond another, and more than `balance_rel`
//! times as many, it goes where there are fewest (sgl-router's `cache_aware`, with the names of its flags).

use super::candidate::{Candidate, lowest};
use super::least_load;
use super::random::Random;

/// Where the rule changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Part of a prompt, from 0 to 1.
    pub cache: f64,
    /// Requests.
    pub balance_abs: u64,
    /// A ratio, at least 1.
    pub balance_rel: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            cache: 0.3,
            balance_abs: 64,
            balance_rel: 1.5,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "only ratios")]
pub(crate) fn choose(
    prompt_tokens: u64,
    thresholds: &Thresholds,
    candidates: &[Candidate],
    random: &mut Random,
) -> Option<usize> {
    let requests = || candidates.iter().map(|candidate| candidate.requests);
    let (most, fewest) = (requests().max()?, requests().min()?);
    let uneven = most - fewest > thresholds.balance_abs
        && most as f64 > thresholds.balance_rel * fewest as f64;
    let longest = candidates
        .iter()
        .map(|candidate| candidate.expected)
        .max()?;
    if uneven || longest as f64 <= thresholds.cache * prompt_tokens as f64 {
        return least_load::choose(candidates, random);
    }
    lowest(candidates, random, |candidate| {
        (longest - candidate.expected, candidate.requests)
    })
}
