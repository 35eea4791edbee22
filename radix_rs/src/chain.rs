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
    let mut hasher = key.hasher();
    hasher.write(&previous.to_le_bytes());
    // Sixteen tokens a call: the hasher takes eight bytes at a time and is slow with four.
    for tokens in block.chunks(16) {
        let mut bytes = [0; 64];
        for (into, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            into.copy_from_slice(&token.to_le_bytes());
        }
        hasher.write(&bytes[..4 * tokens.len()]);
    }
    nonzero(hasher.finish())
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
