//! Slots that are given back, as ranges.

use super::length::to_u32;
use super::slots::Slots;

/// Slots in the order in which they were given back, as ranges that are as long as can be.
///
/// A pool hands out slots in order as long as it can, so what comes back are few ranges of many slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotRanges(Vec<[u32; 2]>);

impl SlotRanges {
    /// The ranges of `slots`.
    pub(super) fn of(slots: &[i32]) -> Self {
        let mut ranges = Self::default();
        ranges.extend(slots);
        ranges
    }

    /// For each range the first slot, the word of an i32, and how many there are, each the one before and one.
    pub fn words(&self) -> &[[u32; 2]] {
        &self.0
    }

    /// Whether nothing was given back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One by one.
    pub fn to_vec(&self) -> Vec<i32> {
        let rows = self.0.iter().map(|&[first, count]| Slots::Row {
            first: first.cast_signed(),
            count,
        });
        rows.flatten().collect()
    }

    pub(super) fn extend(&mut self, slots: &[i32]) {
        self.extend_words(slots.iter().map(|slot| slot.cast_unsigned()));
    }

    pub(super) fn push_slots(&mut self, slots: &Slots<'_>) {
        match *slots {
            Slots::Row { first, count } => self.push(first.cast_unsigned(), count),
            Slots::Listed(words) => self.extend_words(words.iter().copied()),
        }
    }

    fn push(&mut self, first: u32, count: u32) {
        match self.0.last_mut() {
            Some(last) if follows(*last, first) => last[1] += count,
            _ => self.0.push([first, count]),
        }
    }

    /// Where scattered slots part cannot be foreseen, so nothing branches on it: behind the last range each
    /// slot is written as if it began one, and that counts if it does.
    fn extend_words(&mut self, mut words: impl ExactSizeIterator<Item = u32>) {
        let count = words.len();
        let Some(first) = words.next() else {
            return;
        };
        let joined = self.0.pop_if(|&mut last| follows(last, first));
        let start = self.0.len();
        self.0.resize(start + count + 1, [first, 0]);
        // First with its position in place of the number of slots.
        let ranges = &mut self.0[start..];
        let mut at = 0;
        let mut next = first.wrapping_add(1);
        for (word, position) in words.zip(1..) {
            ranges[at + 1] = [word, position];
            at += usize::from(word != next);
            next = word.wrapping_add(1);
        }
        self.0.truncate(start + at + 1);
        let mut end = to_u32(count);
        for range in self.0[start..].iter_mut().rev() {
            (range[1], end) = (end - range[1], range[1]);
        }
        if let Some([first, before]) = joined {
            self.0[start] = [first, before + self.0[start][1]];
        }
    }
}

fn follows([first, count]: [u32; 2], next: u32) -> bool {
    first.wrapping_add(count) == next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_give_back_the_slots_in_their_order_and_are_as_few_as_can_be() {
        let slots = [4, 5, 6, 9, 8, 7, 8, i32::MAX, i32::MIN, -1, 0];
        let ranges = SlotRanges::of(&slots);
        assert_eq!(ranges.to_vec(), slots);
        assert_eq!(ranges.words().len(), 6);
        assert_eq!(ranges.words()[0], [4, 3]);
    }

    #[test]
    fn pieces_that_meet_are_one_range() {
        let mut pieces = SlotRanges::of(&[3]);
        pieces.push_slots(&Slots::Row { first: 4, count: 5 });
        pieces.push_slots(&Slots::Listed(&[9, 10, 7]));
        pieces.extend(&[8, 9]);
        assert_eq!(pieces.words(), [[3, 8], [7, 3]]);
        assert!(!pieces.is_empty() && SlotRanges::of(&[]).is_empty());
    }
}
