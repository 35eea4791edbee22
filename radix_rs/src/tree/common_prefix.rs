//! How far two keys are alike.

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
}
