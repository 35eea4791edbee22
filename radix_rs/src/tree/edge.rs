//! What an edge is made of: token ids, their slots and the hashes of the blocks that end in it.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use super::length::to_u32;
use super::slots::{Slots, rows};

/// What one insert stored, shared by the nodes it was split into since.
///
/// Each of those nodes owns a range of it, so a split copies nothing. They lie on one path, the pieces in
/// order, and leaves go first: what is still owned is always a prefix of the edge.
///
/// One allocation: the number of tokens n, the number of rows of slots r, n token ids; two words for each
/// row, the position and the slot it begins with, or n slots if r is 0; two words for each hash. Tokens
/// stand where their offset says without a look at n.
///
/// `None` is an edge without tokens, that of roots and of places where no node is: it takes no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Edge(Option<Arc<[u32]>>);

const TOKENS: usize = 2;

impl Edge {
    /// `slots` may be longer than `tokens`.
    pub fn new(tokens: &[u32], slots: &[i32], hashes: &[u64]) -> Self {
        let count = tokens.len();
        let slots = &slots[..count];
        let rows = rows(slots).unwrap_or_default();
        let words_of_slots = if rows.is_empty() {
            count
        } else {
            2 * rows.len()
        };
        let words = TOKENS + count + words_of_slots + 2 * hashes.len();
        let mut data = Arc::new_uninit_slice(words);
        let all = Arc::get_mut(&mut data).expect("nobody else has it yet");
        let (head, rest) = all.split_at_mut(TOKENS);
        let (of_tokens, rest) = rest.split_at_mut(count);
        let (of_slots, of_hashes) = rest.split_at_mut(words_of_slots);
        fill(head, &[to_u32(count), to_u32(rows.len())]);
        fill(of_tokens, tokens);
        if rows.is_empty() {
            fill_with(of_slots, slots, i32::cast_unsigned);
        } else {
            fill_pairs(of_slots, &rows, |(start, slot)| {
                [start, slot.cast_unsigned()]
            });
        }
        fill_pairs(of_hashes, hashes, halves);
        // SAFETY: the four parts are all there is, and each `fill` has written every word of its part.
        #[expect(
            unsafe_code,
            reason = "zeros first would be a third pass over what is written"
        )]
        let data = unsafe { data.assume_init() };
        Self(Some(data))
    }

    pub fn len(&self) -> usize {
        self.words()[0] as usize
    }

    pub fn tokens(&self, range: Range<usize>) -> &[u32] {
        &self.words()[TOKENS..][range]
    }

    /// The slots of `range`, row by row, each with the position it begins at.
    pub fn slots(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Slots<'_>)> + Clone {
        let rows = self.rows();
        // The last row that begins at or before the range.
        let mut next = rows
            .partition_point(|&[start, _]| start as usize <= range.start)
            .saturating_sub(1);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at == range.end {
                return None;
            }
            let begin = at;
            let Some(&[start, slot]) = rows.get(next) else {
                at = range.end;
                let base = TOKENS + self.len();
                return Some((begin, Slots::Listed(&self.words()[base + begin..base + at])));
            };
            next += 1;
            at = rows
                .get(next)
                .map_or(range.end, |&[start, _]| range.end.min(start as usize));
            let first = slot
                .cast_signed()
                .wrapping_add_unsigned(to_u32(begin) - start);
            let count = to_u32(at - begin);
            Some((begin, Slots::Row { first, count }))
        })
    }

    /// Empty if the slots are listed.
    fn rows(&self) -> &[[u32; 2]] {
        let words = 2 * self.words()[1] as usize;
        self.words()[TOKENS + self.len()..][..words].as_chunks().0
    }

    /// The hashes of those blocks that end in the edge, by their numbers.
    pub fn hashes(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        self.halves_of_hashes()[range]
            .iter()
            .map(|&halves| whole(halves))
    }

    pub fn hash(&self, number: usize) -> u64 {
        whole(self.halves_of_hashes()[number])
    }

    fn halves_of_hashes(&self) -> &[[u32; 2]] {
        let of_slots = match self.words()[1] {
            0 => self.len(),
            rows => 2 * rows as usize,
        };
        self.words()[TOKENS + self.len() + of_slots..].as_chunks().0
    }

    /// The same edge with its first `count` tokens and `hashes` hashes alone, copied.
    pub fn prefix(&self, count: usize, hashes: usize) -> Self {
        let mut slots = Vec::with_capacity(count);
        for (_, row) in self.slots(0..count) {
            row.append_to(&mut slots);
        }
        let hashes: Vec<u64> = self.hashes(0..hashes).collect();
        Self::new(self.tokens(0..count), &slots, &hashes)
    }

    fn words(&self) -> &[u32] {
        self.0.as_deref().unwrap_or(&[0; TOKENS])
    }

    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.words(), other.words())
    }
}

/// Write every word of `part`.
fn fill(part: &mut [MaybeUninit<u32>], words: &[u32]) {
    fill_with(part, words, |word| word);
}

/// Write every word of `part`, made of as many `items`.
fn fill_with<T: Copy>(part: &mut [MaybeUninit<u32>], items: &[T], word: impl Fn(T) -> u32) {
    assert_eq!(part.len(), items.len());
    for (cell, &item) in part.iter_mut().zip(items) {
        cell.write(word(item));
    }
}

/// Write every word of `part`, made of half as many `items`.
fn fill_pairs<T: Copy>(part: &mut [MaybeUninit<u32>], items: &[T], pair: impl Fn(T) -> [u32; 2]) {
    assert_eq!(part.len(), 2 * items.len());
    for (cells, &item) in part.as_chunks_mut::<2>().0.iter_mut().zip(items) {
        for (cell, word) in cells.iter_mut().zip(pair(item)) {
            cell.write(word);
        }
    }
}

/// Lower half first.
#[expect(clippy::cast_possible_truncation, reason = "to take a half is meant")]
fn halves(hash: u64) -> [u32; 2] {
    [hash as u32, (hash >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_slots(edge: &Edge, range: Range<usize>) -> Vec<i32> {
        let mut all = vec![];
        for (start, row) in edge.slots(range.clone()) {
            assert_eq!(start, range.start + all.len());
            row.append_to(&mut all);
        }
        all
    }

    #[test]
    fn an_edge_gives_back_what_it_was_made_of() {
        for slots in [
            [-1, 7, i32::MAX, 4, 9],
            [1, 2, 3, 4, 9],
            [1, 2, 7, 8, 9],
            [0, 9, 8, 7, 6],
        ] {
            let tokens = [1, u32::MAX, 3, 4];
            let hashes = [u64::MAX, 1 << 40];
            let edge = Edge::new(&tokens, &slots, &hashes);
            assert_eq!(edge.len(), 4);
            assert_eq!(edge.tokens(1..3), [u32::MAX, 3]);
            for (start, end) in (0..=4).flat_map(|start| (start..=4).map(move |end| (start, end))) {
                assert_eq!(all_slots(&edge, start..end), slots[start..end]);
            }
            assert!(edge.hashes(0..2).eq(hashes));
            let prefix = edge.prefix(3, 1);
            assert_eq!((prefix.len(), prefix.tokens(0..3)), (3, &tokens[..3]));
            assert_eq!(
                (all_slots(&prefix, 0..3), prefix.hashes(0..1).next()),
                (slots[..3].to_vec(), Some(u64::MAX))
            );
        }
    }
}
