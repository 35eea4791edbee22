//! Policy `consistent_hash`: prompts that begin alike go to the same replica, whichever router they come by and
//! whatever is cached, unless it has far more than its share to do.
//!
//! Each replica has a score for each beginning, and the highest wins (rendezvous hashing; Thaler and
//! Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998): a replica that joins takes one part in n
//! from each of the others, and one that leaves gives its own to all. Who already has `load_factor` times the
//! mean of requests is passed over (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018).

use super::candidate::Candidate;
use super::random::{Random, mix};

/// Tokens that make a beginning.
const BEGINNING_TOKENS: u32 = 256;

pub(crate) fn choose(
    chain: &[u64],
    block_size: u32,
    load_factor: f64,
    candidates: &[Candidate],
    random: &mut Random,
) -> Option<usize> {
    let beginning = (BEGINNING_TOKENS / block_size).max(1) as usize;
    let bound = bound(load_factor, candidates);
    let open = (0..candidates.len()).filter(|&place| candidates[place].requests < bound);
    let Some(&key) = chain
        .get(..beginning.min(chain.len()))
        .and_then(<[u64]>::last)
    else {
        // Shorter than a block: there is no beginning to tell it by.
        return super::least_load::choose(candidates, random);
    };
    open.max_by_key(|&place| mix(key ^ candidates[place].name_hash))
}

/// Requests that no replica goes beyond: above the mean, this one included, so that one is below it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "requests are far below 2^53, and not negative"
)]
fn bound(load_factor: f64, candidates: &[Candidate]) -> u64 {
    let all: u64 = candidates.iter().map(|candidate| candidate.requests).sum();
    let mean = (all + 1) as f64 / candidates.len().max(1) as f64;
    (load_factor * mean).ceil() as u64
}
