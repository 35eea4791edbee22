//! A mirror's blocks at one place of its stream, to compare with another's.

/// What a mirror held after one batch; stays as it is while the mirror goes on.
#[derive(Clone, Debug)]
pub struct BlockSet {
    /// Of that batch.
    pub epoch: u64,
    /// Of that batch.
    pub seq: u64,
    /// Blocks that it held and had forgotten.
    pub forgotten: u64,
    /// Sorted.
    hashes: Vec<u64>,
}

impl BlockSet {
    pub(crate) fn new(epoch: u64, seq: u64, forgotten: u64, mut hashes: Vec<u64>) -> Self {
        hashes.sort_unstable();
        Self {
            epoch,
            seq,
            forgotten,
            hashes,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// How many of these blocks `other` lacks, and the first `limit` of them, sorted.
    pub fn not_in(&self, other: &Self, limit: usize) -> (usize, Vec<u64>) {
        let mut others = other.hashes.iter().peekable();
        let (mut count, mut first) = (0, Vec::new());
        for hash in &self.hashes {
            while others.next_if(|&other| other < hash).is_some() {}
            if others.peek() != Some(&hash) {
                count += 1;
                if first.len() < limit {
                    first.push(*hash);
                }
            }
        }
        (count, first)
    }
}

#[cfg(test)]
mod tests {
    use super::BlockSet;

    #[test]
    fn what_one_lacks_of_the_other_is_counted_and_the_first_are_named() {
        let set = |hashes: &[u64]| BlockSet::new(1, 1, 0, hashes.to_vec());
        let all = set(&[9, 1, 5, 7, 3]);
        assert_eq!(all.not_in(&all, 9), (0, vec![]));
        assert_eq!(all.not_in(&set(&[]), 2), (5, vec![1, 3]));
        assert_eq!(set(&[]).not_in(&all, 2), (0, vec![]));
        assert_eq!(set(&[0, 3, 4, 9, 10]).not_in(&all, 9), (3, vec![0, 4, 10]));
    }
}
