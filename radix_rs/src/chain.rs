//! Names of prefixes: a namespace's seed and the chain of block hashes that starts there.
//!
//! `h(0)` hashes the namespace, `h(i)` hashes the i-th block's token ids and `h(i-1)`, all with keys that
//! only the cluster knows, so a reader of the deltas can neither recover nor confirm a prompt. 64 bits are
//! enough because a hash is never trusted for correctness: the replica's tree compares token ids.
//!
//! A block is hashed in two steps. NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999;
//! with words of 64 bits as in Krovetz, "Message Authentication on 64-bit Architectures", 2006) shrinks each
//! stretch of 16 tokens to 128 bits, and SipHash-1-3 (Aumasson and Bernstein, "`SipHash`: a fast short-input
//! PRF", 2012; the reduced rounds are those of Rust's and Python's hash tables) links what is left to
//! `h(i-1)`. Two blocks of one length have the same NH with probability 2^-64 at most, whoever chose them
//! without its key, and a PRF of such a hash is a PRF as long as no two of the inputs collide (Wegman and
//! Carter, 1981): for q blocks that is but for q^2 / 2^65, which names of 64 bits have anyway. Nothing of NH
//! is seen but through `SipHash`, so nothing is learned of its key.
//!
//! Four products replace eight rounds of `SipHash` in a block of 16, and they do not wait for `h(i-1)`: one
//! block's are computed while the one before is still being linked.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// Names this chain hash; peers with another version cannot share deltas.
pub const HASH_VERSION: u32 = 2;

/// Stands for "no parent" in deltas; no block has this hash.
pub const NO_PARENT: u64 = 0;

/// Tokens that NH takes at once.
const STRETCH: usize = 16;

/// The secret key of a cluster's chain hashes, and what follows from it: a key for each part of the hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey {
    bytes: [u8; 16],
    /// SHA-256 of the key and a byte 0, then of the key and a byte 1.
    nh: [u64; STRETCH / 2],
    /// The first half of SHA-256 of the key and a byte 2.
    link: [u64; 2],
}

impl HashKey {
    /// A key of exactly these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        let mut nh = [0; STRETCH / 2];
        nh[..4].copy_from_slice(&expand(bytes, 0));
        nh[4..].copy_from_slice(&expand(bytes, 1));
        let [k0, k1, ..] = expand(bytes, 2);
        let link = [k0, k1];
        Self { bytes, nh, link }
    }

    /// The first half of SHA-256("prefixlb-hash-v1" || secret).
    pub fn derive(secret: &[u8]) -> Self {
        let digest = Sha256::new()
            .chain_update(b"prefixlb-hash-v1")
            .chain_update(secret)
            .finalize();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self::new(key)
    }

    /// The bytes of the key.
    pub fn bytes(&self) -> [u8; 16] {
        self.bytes
    }

    /// NH of a stretch: the words, two tokens each, are added to those of the key and multiplied in pairs.
    #[inline]
    fn shrink(&self, tokens: &[u32; STRETCH]) -> u128 {
        let (quads, _) = tokens.as_chunks::<4>();
        let (keys, _) = self.nh.as_chunks::<2>();
        quads.iter().zip(keys).fold(0, |sum, (quad, key)| {
            let [left, right] =
                [(quad[0], quad[1], key[0]), (quad[2], quad[3], key[1])].map(|(low, high, key)| {
                    u128::from((u64::from(low) | u64::from(high) << 32).wrapping_add(key))
                });
            sum.wrapping_add(left * right)
        })
    }
}

fn expand(key: [u8; 16], part: u8) -> [u64; 4] {
    let digest = Sha256::new()
        .chain_update(key)
        .chain_update([part])
        .finalize();
    let (words, _) = digest.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

/// `h(0)` of a namespace: the length (u32, little-endian) and bytes of each field in turn.
pub fn namespace_seed(key: &HashKey, model: &str, extra_key: &str, cache_salt: &str) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&key.bytes);
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

/// `h(i)`: `SipHash` of the block's NH, 16 tokens after 16, and `h(i-1)`, all little-endian. A last stretch
/// that is short is filled up with zeros; all blocks of a chain have the same length.
pub fn next_hash(key: &HashKey, previous: u64, block: &[u32]) -> u64 {
    let (stretches, rest) = block.as_chunks::<STRETCH>();
    let shrunk = stretches.iter().map(|stretch| key.shrink(stretch));
    if rest.is_empty() {
        return link(key, shrunk, previous);
    }
    let mut last = [0; STRETCH];
    last[..rest.len()].copy_from_slice(rest);
    link(key, shrunk.chain([key.shrink(&last)]), previous)
}

#[inline]
fn link(key: &HashKey, shrunk: impl IntoIterator<Item = u128>, previous: u64) -> u64 {
    let [k0, k1] = key.link;
    let mut hasher = SipHasher13::new_with_keys(k0, k1);
    for sum in shrunk {
        hasher.write(&sum.to_le_bytes());
    }
    hasher.write(&previous.to_le_bytes());
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
    if block_size == STRETCH {
        // The usual size: without the general case, the keys and the state stay in registers.
        let (blocks, _) = tokens.as_chunks::<STRETCH>();
        out.extend(blocks.iter().map(|block| {
            previous = link(key, [key.shrink(block)], previous);
            previous
        }));
    } else {
        out.extend(tokens.chunks_exact(block_size).map(|block| {
            previous = next_hash(key, previous, block);
            previous
        }));
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

    /// Computed with `replica/py_tree/chain.py`.
    const KNOWN: [u64; 4] = [
        0xe3d8_5cd1_348c_4a7d,
        0x17ed_8b93_1743_8374,
        0x8a27_465f_346f_88d6,
        0xde1b_91de_37ff_1d25,
    ];

    fn key() -> HashKey {
        HashKey::derive(b"secret")
    }

    /// NH by its definition, word by word, of as many zeros as are missing.
    fn nh(key: &HashKey, tokens: &[u32]) -> u128 {
        let token = |index: usize| u64::from(tokens.get(index).copied().unwrap_or(0));
        let word = |index: usize| token(2 * index) + (token(2 * index + 1) << 32);
        let factor = |index: usize| u128::from(word(index).wrapping_add(key.nh[index]));
        (0..4).fold(0u128, |sum, pair| {
            sum.wrapping_add(factor(2 * pair) * factor(2 * pair + 1))
        })
    }

    #[test]
    fn hash_is_siphash_1_3_of_the_stretches_nh_and_the_previous_hash() {
        let tokens: Vec<u32> = (0..100u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let mut link_key = [0; 16];
        link_key[..8].copy_from_slice(&key().link[0].to_le_bytes());
        link_key[8..].copy_from_slice(&key().link[1].to_le_bytes());
        for length in 0..tokens.len() {
            let mut plain = SipHasher13::new_with_key(&link_key);
            for stretch in tokens[..length].chunks(STRETCH) {
                plain.write(&nh(&key(), stretch).to_le_bytes());
            }
            plain.write(&u64::MAX.to_le_bytes());
            assert_eq!(
                next_hash(&key(), u64::MAX, &tokens[..length]),
                plain.finish()
            );
        }
    }

    #[test]
    fn known_hashes_do_not_change_within_a_version() {
        let tokens: Vec<u32> = (0..40).collect();
        let mut hashes = Vec::new();
        extend_chain(&key(), 7, &tokens[..32], 16, &mut hashes);
        extend_chain(&key(), u64::MAX, &tokens, 40, &mut hashes);
        hashes.push(next_hash(&key(), 7, &[1, u32::MAX]));
        assert_eq!(hashes, KNOWN);
    }

    #[test]
    fn every_token_of_a_block_counts() {
        let block: Vec<u32> = (0..40).collect();
        let hash = next_hash(&key(), 1, &block);
        for place in 0..block.len() {
            let mut other = block.clone();
            other[place] ^= 1 << 31;
            assert_ne!(next_hash(&key(), 1, &other), hash, "token {place}");
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
