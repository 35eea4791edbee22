//! A set of replicas, as bits.

/// A replica's number in the index: dense, reused after the replica is removed.
pub type ReplicaId = u32;

const WORD: u32 = u64::BITS;

/// Sixty-four replicas need no allocation.
#[derive(Clone, Debug, Default)]
pub struct ReplicaSet {
    first: u64,
    rest: Vec<u64>,
}

impl ReplicaSet {
    /// The set of one replica.
    pub fn of(replica: ReplicaId) -> Self {
        let mut set = Self::default();
        set.insert(replica);
        set
    }

    fn word(&self, index: usize) -> u64 {
        match index {
            0 => self.first,
            _ => self.rest.get(index - 1).copied().unwrap_or(0),
        }
    }

    fn words(&self) -> usize {
        1 + self.rest.len()
    }

    /// Whether `replica` is in it.
    pub fn contains(&self, replica: ReplicaId) -> bool {
        self.word((replica / WORD) as usize) >> (replica % WORD) & 1 == 1
    }

    /// Adds one.
    pub fn insert(&mut self, replica: ReplicaId) {
        let index = (replica / WORD) as usize;
        if index > self.rest.len() {
            self.rest.resize(index, 0);
        }
        *self.word_mut(index) |= 1 << (replica % WORD);
    }

    /// Takes one out; whether it was in it.
    pub fn remove(&mut self, replica: ReplicaId) -> bool {
        let is_in = self.contains(replica);
        if is_in {
            *self.word_mut((replica / WORD) as usize) &= !(1 << (replica % WORD));
        }
        is_in
    }

    fn word_mut(&mut self, index: usize) -> &mut u64 {
        match index {
            0 => &mut self.first,
            _ => &mut self.rest[index - 1],
        }
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.first == 0 && self.rest.iter().all(|&word| word == 0)
    }

    /// How many are in it.
    pub(crate) fn len(&self) -> u32 {
        (0..self.words())
            .map(|index| self.word(index).count_ones())
            .sum()
    }

    /// Whether `replica` is its only member.
    pub(crate) fn is_exactly(&self, replica: ReplicaId) -> bool {
        let own = (replica / WORD) as usize;
        (0..self.words().max(own + 1)).all(|index| {
            let only = if index == own {
                1 << (replica % WORD)
            } else {
                0
            };
            self.word(index) == only
        })
    }

    /// Bytes beyond its own size.
    pub(crate) fn size_bytes(&self) -> usize {
        self.rest.capacity() * size_of::<u64>()
    }

    /// Whether all of it is in `of`.
    pub fn is_subset(&self, of: &Self) -> bool {
        (0..self.words()).all(|index| self.word(index) & !of.word(index) == 0)
    }

    /// Removes and returns what `kept` lacks.
    pub(crate) fn split_off_outside(&mut self, kept: &Self) -> Self {
        let mut outside = self.clone();
        for index in 0..self.words() {
            *outside.word_mut(index) &= !kept.word(index);
            *self.word_mut(index) &= kept.word(index);
        }
        outside
    }

    /// Those in both.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let rest = self.rest.iter().zip(&other.rest);
        Self {
            first: self.first & other.first,
            rest: rest.map(|(one, other)| one & other).collect(),
        }
    }

    /// Its members in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        (0..self.words()).flat_map(move |index| {
            let mut word = self.word(index);
            std::iter::from_fn(move || {
                if word == 0 {
                    return None;
                }
                let bit = word.trailing_zeros();
                word &= word - 1;
                Some(index as ReplicaId * WORD + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_back_in_order_across_words() {
        let mut set = ReplicaSet::default();
        for replica in [200, 3, 64, 63] {
            set.insert(replica);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 63, 64, 200]);
        assert_eq!(set.len(), 4);
        assert!(set.contains(200) && !set.contains(201) && !set.contains(100_000));
        assert!(set.remove(200) && !set.remove(200) && !set.remove(100_000));
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 63, 64]);
    }

    #[test]
    fn sets_of_different_width_compare() {
        let (narrow, mut wide) = (ReplicaSet::of(1), ReplicaSet::of(1));
        wide.insert(300);
        assert!(narrow.is_subset(&wide) && !wide.is_subset(&narrow));
        let outside = wide.split_off_outside(&narrow);
        assert_eq!(outside.iter().collect::<Vec<_>>(), [300]);
        assert!(wide.is_subset(&narrow) && !wide.is_empty());
        wide.insert(300);
        for both in [narrow.and(&wide), wide.and(&narrow)] {
            assert_eq!(both.iter().collect::<Vec<_>>(), [1]);
        }
    }
}
