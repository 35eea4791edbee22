//! What an edge is made of: token ids, their slots and the hashes of the blocks that end in it.

use std::ops::Range;
use std::sync::Arc;

/// What one insert stored, shared by the nodes it was split into since.
///
/// Each of those nodes owns a range of it, so a split copies nothing. They lie on one path, the pieces in
/// order, and leaves go first: what is still owned is always a prefix of the run.
///
/// One allocation: the number of tokens n, n token ids, n slots, then two words for each hash. Tokens
/// stand where their offset says without a look at n.
#[derive(Clone, Debug)]
pub(super) struct Run(Arc<[u32]>);

impl Default for Run {
    fn default() -> Self {
        Self(Arc::new([0]))
    }
}

impl Run {
    /// `slots` may be longer than `tokens`.
    pub fn new(tokens: &[u32], slots: &[i32], hashes: &[u64]) -> Self {
        let count = tokens.len();
        let words = 1 + 2 * count + 2 * hashes.len();
        let mut data: Arc<[u32]> = std::iter::repeat_n(0, words).collect();
        if let Some(data) = Arc::get_mut(&mut data) {
            data[0] = to_u32(count);
            data[1..=count].copy_from_slice(tokens);
            for (word, &slot) in data[1 + count..].iter_mut().zip(&slots[..count]) {
                *word = slot.cast_unsigned();
            }
            for (words, &hash) in data[1 + 2 * count..].chunks_exact_mut(2).zip(hashes) {
                words.copy_from_slice(&halves(hash));
            }
        }
        Self(data)
    }

    pub fn len(&self) -> usize {
        self.0[0] as usize
    }

    pub fn tokens(&self, range: Range<usize>) -> &[u32] {
        &self.0[1..][range]
    }

    pub fn slots(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = i32> + Clone + '_ {
        let base = 1 + self.len();
        self.0[base + range.start..base + range.end]
            .iter()
            .map(|slot| slot.cast_signed())
    }

    /// The hash of the `index`-th block that ends in the run.
    pub fn hash(&self, index: usize) -> u64 {
        let at = 1 + 2 * self.len() + 2 * index;
        u64::from(self.0[at]) | u64::from(self.0[at + 1]) << 32
    }

    /// The same run with its first `count` tokens and `hashes` hashes alone, copied.
    pub fn prefix(&self, count: usize, hashes: usize) -> Self {
        let slots: Vec<i32> = self.slots(0..count).collect();
        let hashes: Vec<u64> = (0..hashes).map(|index| self.hash(index)).collect();
        Self::new(self.tokens(0..count), &slots, &hashes)
    }

    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Positions and lengths are u32: `TreeError::KeyTooLong` guards the entrance.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
pub(super) fn to_u32(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok());
    length as u32
}

/// Lower half first.
#[expect(clippy::cast_possible_truncation, reason = "to take a half is meant")]
fn halves(hash: u64) -> [u32; 2] {
    [hash as u32, (hash >> 32) as u32]
}

/// How many leading tokens two keys share.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let shorter = a.len().min(b.len());
    let (a, b) = (&a[..shorter], &b[..shorter]);
    // A comparison of slices is a memcmp; the coarse step finds the place, the fine ones narrow it.
    let coarse = skip_equal::<1024>(a, b, 0);
    let fine = skip_equal::<32>(a, b, coarse);
    fine + a[fine..]
        .iter()
        .zip(&b[fine..])
        .take_while(|(a, b)| a == b)
        .count()
}

/// From `start`, past all chunks of `N` that are equal.
fn skip_equal<const N: usize>(a: &[u32], b: &[u32], start: usize) -> usize {
    let equal = a[start..]
        .chunks_exact(N)
        .zip(b[start..].chunks_exact(N))
        .take_while(|(a, b)| a == b)
        .count();
    start + equal * N
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefix_finds_every_place_of_a_difference() {
        let a: Vec<u32> = (0..2500).collect();
        for place in 0..a.len() {
            let mut b = a.clone();
            b[place] = u32::MAX;
            assert_eq!(common_prefix(&a, &b), place);
            assert_eq!(common_prefix(&a, &a[..place]), place);
        }
        assert_eq!(common_prefix(&a, &a), 2500);
    }

    #[test]
    fn a_run_gives_back_what_it_was_made_of() {
        let run = Run::new(
            &[1, u32::MAX, 3],
            &[-1, 7, i32::MAX, 9],
            &[u64::MAX, 1 << 40],
        );
        assert_eq!(run.len(), 3);
        assert_eq!(run.tokens(1..3), [u32::MAX, 3]);
        assert_eq!(run.slots(0..3).collect::<Vec<_>>(), [-1, 7, i32::MAX]);
        assert_eq!((run.hash(0), run.hash(1)), (u64::MAX, 1 << 40));
        let prefix = run.prefix(2, 1);
        assert_eq!((prefix.len(), prefix.tokens(0..2)), (2, &[1, u32::MAX][..]));
        assert_eq!(
            (prefix.slots(0..2).last(), prefix.hash(0)),
            (Some(7), u64::MAX)
        );
    }
}
