//! Slots of consecutive positions.
//!
//! A pool hands out slots in order as long as it can, and those of a page always are. Such a row is kept as
//! where it begins: it costs next to no memory, and whoever wants its slots counts instead of reading them.

use std::cell::Cell;

use super::length::to_u32;

/// Slots of consecutive positions: an iterator that can also be emptied in one go.
#[derive(Clone, Debug)]
pub enum Slots<'a> {
    /// `count` of them, each the one before and one.
    Row {
        /// The first.
        first: i32,
        /// How many.
        count: u32,
    },
    /// As they come, the words of i32.
    Listed(&'a [u32]),
}

impl Slots<'_> {
    /// Write them to the first cells.
    ///
    /// # Panics
    /// If there are fewer cells than slots.
    pub fn write_to(self, cells: &[Cell<i32>]) {
        let cells = &cells[..self.len()];
        match self {
            Self::Row { first, .. } => {
                for (cell, index) in cells.iter().zip(0u32..) {
                    cell.set(first.wrapping_add_unsigned(index));
                }
            }
            Self::Listed(words) => {
                for (cell, word) in cells.iter().zip(words) {
                    cell.set(word.cast_signed());
                }
            }
        }
    }

    /// Write them behind what is in `out`.
    pub(super) fn append_to(self, out: &mut Vec<i32>) {
        match self {
            Self::Row { first, count } => {
                out.extend((0..count).map(|index| first.wrapping_add_unsigned(index)));
            }
            Self::Listed(words) => out.extend(words.iter().map(|word| word.cast_signed())),
        }
    }
}

impl Iterator for Slots<'_> {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        match self {
            Self::Row { first, count } => {
                *count = count.checked_sub(1)?;
                let slot = *first;
                *first = slot.wrapping_add(1);
                Some(slot)
            }
            Self::Listed(words) => {
                let (word, rest) = words.split_first()?;
                *words = rest;
                Some(word.cast_signed())
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = match self {
            Self::Row { count, .. } => *count as usize,
            Self::Listed(words) => words.len(),
        };
        (count, Some(count))
    }
}

impl ExactSizeIterator for Slots<'_> {}

/// Where a row of slots begins: the position and the slot.
pub(super) type Row = (u32, i32);

/// The rows of `slots`; `None` if those of some beginning, four apart, have fewer than 16 slots in the mean.
/// Finding more of them costs more than it saves.
pub(super) fn rows(slots: &[i32]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let mut at = 0;
    while let Some(&first) = slots.get(at) {
        if rows.len() > 4 + at / 16 {
            return None;
        }
        rows.push((to_u32(at), first));
        at += row_length(&slots[at..], first);
    }
    // Few slots may take less room than their rows.
    (2 * rows.len() <= slots.len()).then_some(rows)
}

/// How many of `slots` count on from `first`.
fn row_length(slots: &[i32], first: i32) -> usize {
    // Comparing many at once is fast; the coarse step finds the place, the finer ones narrow it.
    let coarse = skip_counting::<128>(slots, first, 0);
    let fine = skip_counting::<16>(slots, first, coarse);
    let next = first.wrapping_add_unsigned(to_u32(fine));
    fine + slots[fine..]
        .iter()
        .zip(0..)
        .take_while(|&(&slot, index)| slot == next.wrapping_add(index))
        .count()
}

/// From `start`, past all chunks of `N` that count on from `first`.
fn skip_counting<const N: usize>(slots: &[i32], first: i32, start: usize) -> usize {
    let mut next = first.wrapping_add_unsigned(to_u32(start));
    let whole = slots[start..]
        .chunks_exact(N)
        .take_while(|chunk| {
            let differ = chunk.iter().zip(0..).fold(0, |differ, (slot, index)| {
                differ | (slot ^ next.wrapping_add(index))
            });
            next = next.wrapping_add_unsigned(to_u32(N));
            differ == 0
        })
        .count();
    start + whole * N
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_ends_where_a_slot_is_not_the_next() {
        for end in 1..100 {
            let mut slots: Vec<i32> = (i32::MAX - 20..=i32::MAX)
                .chain(i32::MIN..)
                .take(100)
                .collect();
            slots[end] = 7;
            let rows = rows(&slots).unwrap();
            assert_eq!(rows[..2], [(0, slots[0]), (to_u32(end), 7)]);
            assert_eq!(rows.len(), if end == 99 { 2 } else { 3 });
        }
    }

    #[test]
    fn rows_are_not_worth_it_for_scattered_slots() {
        assert_eq!(rows(&[5]), None);
        assert_eq!(rows(&[5, 6]), Some(vec![(0, 5)]));
        assert_eq!(rows(&[5, 6, 9, 8]), None);
        assert_eq!(rows(&[]), Some(vec![]));
    }

    #[test]
    fn all_ways_to_empty_slots_agree() {
        let words = [3, u32::MAX];
        for slots in [
            Slots::Row {
                first: i32::MAX,
                count: 2,
            },
            Slots::Listed(&words),
        ] {
            let one_by_one: Vec<i32> = slots.clone().collect();
            let mut appended = vec![];
            slots.clone().append_to(&mut appended);
            let cells = [const { Cell::new(0) }; 3];
            slots.write_to(&cells);
            assert_eq!(one_by_one, appended);
            assert_eq!(one_by_one, cells.map(Cell::into_inner)[..2]);
        }
    }
}
