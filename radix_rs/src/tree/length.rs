//! Lengths as the tree keeps them.

/// Positions and lengths are u32: `TreeError::KeyTooLong` guards the entrance.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
pub(super) fn to_u32(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok());
    length as u32
}
