//! Policy `power_of_two`: of two replicas drawn by chance, the one with less to do (Mitzenmacher, "The Power of Two
//! Choices in Randomized Load Balancing", 2001).
//!
//! Nearly as even as looking at all, and routers that know the same old load do not all run to the same replica.

use super::candidate::Candidate;
use super::random::Random;

pub(crate) fn choose(candidates: &[Candidate], random: &mut Random) -> Option<usize> {
    let last = candidates.len().checked_sub(1)?;
    let one = random.below(candidates.len());
    // Of the others: the last one stands in for the first drawn.
    let other = match random.below(last) {
        drawn if drawn == one => last,
        drawn => drawn,
    };
    let load = |place: usize| (candidates[place].requests, candidates[place].pending_tokens);
    Some(if load(other) < load(one) { other } else { one })
}
