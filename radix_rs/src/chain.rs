//! Names of prefixes: a namespace's seed and the chain of block hashes that starts there.
//!
//! `h(0)` hashes the namespace, `h(i)` hashes `h(i-1)` and the i-th block's token ids, all with a key that
//! only the cluster knows, so a reader of the deltas can neither recover nor confirm a prompt. The function
//! is SipHash-1-3 (Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", 2012; the reduced rounds are
//! those of Rust's and Python's hash tables), a PRF under a 128-bit key. 64 bits are enough because a hash
//! is never trusted for correctness: the replica's tree compares token ids.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// Names this chain hash; peers with another version cannot share deltas.
pub const HASH_VERSION: u32 = 1;

/// Stands for "no parent" in deltas; no block has this hash.
pub const NO_PARENT: u64 = 0;

/// The secret key of a cluster's chain hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// A key of exactly these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The first half of SHA-256("prefixlb-hash-v1" || secret).
    pub fn derive(secret: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"prefixlb-hash-v1")
            .chain_update(secret)
            .finalize();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }

    /// The bytes of the key.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    fn words(&self) -> [u64; 2] {
        let number = u128::from_le_bytes(self.0);
        [low(number), low(number >> 64)]
    }

    fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// `h(0)` of a namespace: the length (u32, little-endian) and bytes of each field in turn.
pub fn namespace_seed(key: &HashKey, model: &str, extra_key: &str, cache_salt: &str) -> u64 {
    let mut hasher = key.hasher();
    for field in [model, extra_key, cache_salt] {
        // A field of 4 GiB cannot arrive: messages are bounded far below.
        hasher.write(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_le_bytes());
        hasher.write(field.as_bytes());
    }
    nonzero(hasher.finish())
}

/// Tells whether two processes have the same key, and nothing else about it.
pub fn key_check(key: &HashKey) -> u64 {
    namespace_seed(key, "prefixlb-key-check", "", "")
}

/// `h(i)` from `h(i-1)` (little-endian) and the block's token ids as little-endian u32.
pub fn next_hash(key: &HashKey, previous: u64, block: &[u32]) -> u64 {
    let mut state = Words::new(key);
    state.write(previous);
    let (pairs, rest) = block.as_chunks::<2>();
    for &[low, high] in pairs {
        state.write(u64::from(low) | u64::from(high) << 32);
    }
    // The last word holds what is left over and, in its top byte, the number of bytes.
    let rest = rest.first().map_or(0, |&token| u64::from(token));
    state.write(rest | (8 + 4 * block.len() as u64) << 56);
    nonzero(state.finish())
}

/// SipHash-1-3 of whole words: a prompt is hashed at each insert and pick, twice as fast as byte by byte.
struct Words([u64; 4]);

impl Words {
    fn new(key: &HashKey) -> Self {
        let [k0, k1] = key.words();
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    fn write(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..3 {
            self.round();
        }
        self.0.into_iter().fold(0, |hash, word| hash ^ word)
    }

    fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.0;
        v0 = v0.wrapping_add(v1);
        v2 = v2.wrapping_add(v3);
        v1 = v1.rotate_left(13) ^ v0;
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.rotate_left(32).wrapping_add(v3);
        v2 = v2.wrapping_add(v1);
        v1 = v1.rotate_left(17) ^ v2;
        v3 = v3.rotate_left(21) ^ v0;
        self.0 = [v0, v1, v2.rotate_left(32), v3];
    }
}

/// Hashes of the whole blocks of `tokens`, continuing after `previous`.
pub fn extend_chain(
    key: &HashKey,
    mut previous: u64,
    tokens: &[u32],
    block_size: usize,
    out: &mut Vec<u64>,
) {
    for block in tokens.chunks_exact(block_size) {
        previous = next_hash(key, previous, block);
        out.push(previous);
    }
}

/// What a block adds to a digest: the 64-bit finaliser of `MurmurHash3`, so that sums of hashes do not cancel.
pub fn mix(hash: u64) -> u64 {
    let mut x = hash;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[expect(clippy::cast_possible_truncation, reason = "to take a half is meant")]
fn low(number: u128) -> u64 {
    number as u64
}

/// 0 is taken by [`NO_PARENT`].
fn nonzero(hash: u64) -> u64 {
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HashKey {
        HashKey::derive(b"secret")
    }

    #[test]
    fn hash_is_siphash_1_3_of_the_documented_bytes() {
        let mut plain = SipHasher13::new_with_key(&key().bytes());
        plain.write(&[7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(next_hash(&key(), 7, &[1, u32::MAX]), plain.finish());
    }

    #[test]
    fn blocks_of_any_length_are_hashed_as_their_bytes() {
        let tokens: Vec<u32> = (0..100u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        for length in 0..tokens.len() {
            let mut plain = SipHasher13::new_with_key(&key().bytes());
            plain.write(&u64::MAX.to_le_bytes());
            for token in &tokens[..length] {
                plain.write(&token.to_le_bytes());
            }
            assert_eq!(
                next_hash(&key(), u64::MAX, &tokens[..length]),
                plain.finish()
            );
        }
    }

    #[test]
    fn fields_of_a_namespace_do_not_run_into_each_other() {
        let seeds = [
            ("m", "a", "bc"),
            ("m", "ab", "c"),
            ("m", "", "abc"),
            ("ma", "bc", ""),
            ("m", "abc", ""),
        ]
        .map(|(model, extra, salt)| namespace_seed(&key(), model, extra, salt));
        let distinct: std::collections::HashSet<_> = seeds.into_iter().collect();
        assert_eq!(distinct.len(), seeds.len());
    }

    #[test]
    fn a_chain_can_be_extended_block_by_block() {
        let tokens: Vec<u32> = (0..50).collect();
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        extend_chain(&key(), 9, &tokens, 16, &mut whole);
        extend_chain(&key(), 9, &tokens[..16], 16, &mut parts);
        let last = parts[0];
        extend_chain(&key(), last, &tokens[16..], 16, &mut parts);
        assert_eq!(whole.len(), 3);
        assert_eq!(whole, parts);
    }

    #[test]
    fn another_key_gives_another_chain() {
        assert_ne!(
            next_hash(&key(), 1, &[1]),
            next_hash(&HashKey::derive(b"other"), 1, &[1])
        );
    }
}
