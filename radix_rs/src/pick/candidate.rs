//! What a policy chooses from.

use std::cmp::Ordering;

use super::cost::Terms;
use super::random::Random;
use crate::index::ReplicaId;

/// One replica's side of a pick; in tokens unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its number in the index.
    pub id: ReplicaId,
    /// Of its name: the same in every router.
    pub name_hash: u64,
    /// Its answers speak for it; the others are for want of better.
    pub is_sound: bool,
    /// Leading tokens of the prompt in its mirror.
    pub matched: u64,
    /// Leading tokens in its mirror or coming with a prompt in flight.
    pub expected: u64,
    /// What the pick would cost.
    pub terms: Terms,
    /// Requests this router has there.
    pub in_flight: u32,
    /// Requests there, by its own report or by what this router has there, whichever is more.
    pub requests: u64,
    /// Prompt tokens it reports as not computed.
    pub pending_tokens: u64,
    /// Cached tokens as a part of its slots; without a report, just cached tokens.
    pub fill: f64,
}

/// Bits of a float that is 0 or more order as the float does.
pub(super) fn ordered(value: f64) -> u64 {
    debug_assert!(value >= 0.0, "{value}");
    value.to_bits()
}

/// The place of a candidate with the lowest key, any of them with the same chance; None of none.
pub(super) fn lowest<K: Ord>(
    candidates: &[Candidate],
    random: &mut Random,
    key: impl Fn(&Candidate) -> K,
) -> Option<usize> {
    let mut best = key(candidates.first()?);
    let mut ties = 1;
    for candidate in &candidates[1..] {
        let other = key(candidate);
        match other.cmp(&best) {
            Ordering::Less => (best, ties) = (other, 1),
            Ordering::Equal => ties += 1,
            Ordering::Greater => {}
        }
    }
    let chosen = random.below(ties);
    let mut equal = (0..candidates.len()).filter(|&place| key(&candidates[place]) == best);
    equal.nth(chosen)
}
