//! Policy `least_load`: fewest requests, then fewest prompt tokens that wait.

use super::candidate::{Candidate, lowest};
use super::random::Random;

pub(crate) fn choose(candidates: &[Candidate], random: &mut Random) -> Option<usize> {
    lowest(candidates, random, |c| (c.requests, c.pending_tokens))
}
