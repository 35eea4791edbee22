//! Names of prefixes: a namespace's seed and the chain of block hashes that starts there.
//!
//! `h(0)` hashes the namespace, `h(i)` the i-th block's token ids and all before it, with keys that only the
//! cluster knows, so a reader of the deltas can neither recover nor confirm a prompt. 64 bits are enough because
//! a hash is never trusted for correctness: the replica's tree compares token ids.
//!
//! Blocks are taken in groups of 128 tokens. NH (Black et al., "UMAC: Fast and Secure Message Authentication",
//! 1999; with words of 64 bits as in Krovetz, "Message Authentication on 64-bit Architectures", 2006) shrinks to
//! 128 bits what stands before the group, its anchor, and the tokens of the group up to the end of a block; half
//! of what AES-128 makes of them is that block's hash, and the last hash of a group is the anchor of the next.
//!
//! NH is a sum of products, so each block of a group but adds to it, and the group's AES runs side by side: what
//! has to wait, one for another, is one AES for 128 tokens.
//!
//! Why that is safe: two beginnings of groups that differ, in anchor, tokens or length, have one NH with
//! probability 2^-63 at most, whoever chose them without its key. For in the last product that only one of them
//! has, or that differs, one factor of 64 random bits must take one of at most two values. What AES makes of
//! inputs that are all different looks random to whoever lacks its key, so nothing is learned of the tokens, nor
//! of NH's key, as long as no two of q blocks collide (Wegman and Carter, 1981): but for q^2 / 2^64, about what
//! names of 64 bits have anyway.

use std::hash::Hasher;
use std::slice::ChunksExact;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Block};
use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// Names this chain hash; peers with another version cannot share deltas.
pub const HASH_VERSION: u32 = 3;

/// Stands for "no parent" in deltas; no block has this hash.
pub const NO_PARENT: u64 = 0;

/// Tokens that NH takes at once.
const STRETCH: usize = 16;

/// Stretches for which NH has a key.
const GROUP: usize = 8;

/// A token id, in memory or as it stands in a message.
pub trait TokenId: Copy + Default {
    /// Its number.
    fn number(self) -> u32;
}

impl TokenId for u32 {
    fn number(self) -> u32 {
        self
    }
}

/// Little-endian.
impl TokenId for [u8; 4] {
    fn number(self) -> u32 {
        u32::from_le_bytes(self)
    }
}

/// The secret key of a cluster's chain hashes, and what follows from it: a key for each part of the hash.
#[derive(Clone)]
pub struct HashKey {
    bytes: [u8; 16],
    /// SHA-256 of the key and a byte 0, then of the key and a byte 1, and so on up to 15.
    nh: [[u64; STRETCH / 2]; GROUP],
    /// The first half of SHA-256 of the key and a byte 16; the second half is that of AES.
    anchor: [u64; 2],
    aes: Aes128,
}

impl HashKey {
    /// A key of exactly these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        let expand = |part: u8| -> [u8; 32] {
            Sha256::new()
                .chain_update(bytes)
                .chain_update([part])
                .finalize()
                .into()
        };
        let mut nh = [[0; STRETCH / 2]; GROUP];
        for (words, part) in nh.as_flattened_mut().chunks_exact_mut(4).zip(0..) {
            words.copy_from_slice(&as_words(&expand(part)));
        }
        let last = expand(16);
        let [first, second, ..] = as_words(&last);
        let of_aes: [u8; 16] = std::array::from_fn(|index| last[16 + index]);
        Self {
            bytes,
            nh,
            anchor: [first, second],
            aes: Aes128::new(&of_aes.into()),
        }
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

    /// NH of what stands before a group.
    #[inline]
    fn begin(&self, anchor: u64) -> u128 {
        let [added, factor] = self.anchor;
        u128::from(anchor.wrapping_add(added)) * u128::from(factor)
    }

    fn hash(&self, sum: u128) -> u64 {
        let mut block: Block = sum.to_le_bytes().into();
        self.aes.encrypt_block(&mut block);
        first_half(&block)
    }
}

fn as_words(digest: &[u8; 32]) -> [u64; 4] {
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

/// Blocks that make a group, in which all hashes follow from the last one before it.
pub fn blocks_in_group(block_size: usize) -> usize {
    (GROUP / block_size.div_ceil(STRETCH)).max(1)
}

/// Hashes of the whole blocks of `tokens`, which begin a group. `anchor` is the hash of the block before it, or
/// `h(0)`.
pub fn extend_chain<T: TokenId>(
    key: &HashKey,
    mut anchor: u64,
    tokens: &[T],
    block_size: usize,
    out: &mut Vec<u64>,
) {
    if block_size == STRETCH {
        // The usual size: a group's AES in one go, and loops whose lengths are known.
        let (blocks, _) = tokens.as_chunks::<STRETCH>();
        let (groups, rest) = blocks.as_chunks::<GROUP>();
        out.reserve(blocks.len());
        for group in groups {
            anchor = extend_group(key, anchor, group, out);
        }
        extend_by_stretches(key, anchor, rest.as_flattened().chunks_exact(STRETCH), out);
        return;
    }
    let of_group = block_size * blocks_in_group(block_size);
    for group in tokens.chunks(of_group) {
        anchor = extend_by_stretches(key, anchor, group.chunks_exact(block_size), out);
    }
}

/// The hashes of a group of blocks of 16 tokens. Returns the last one.
#[inline]
fn extend_group<T: TokenId, const BLOCKS: usize>(
    key: &HashKey,
    anchor: u64,
    blocks: &[[T; STRETCH]; BLOCKS],
    out: &mut Vec<u64>,
) -> u64 {
    let mut sum = key.begin(anchor);
    let mut ends = [Block::default(); BLOCKS];
    for ((words, block), end) in key.nh.iter().zip(blocks).zip(&mut ends) {
        sum = sum.wrapping_add(shrink(words, block));
        *end = sum.to_le_bytes().into();
    }
    key.aes.encrypt_blocks(&mut ends);
    let hashes = ends.each_ref().map(first_half);
    out.extend_from_slice(&hashes);
    hashes[BLOCKS - 1]
}

/// The hashes of the blocks of a group, or of one block that is several groups. Returns the last one.
fn extend_by_stretches<T: TokenId>(
    key: &HashKey,
    mut anchor: u64,
    blocks: ChunksExact<'_, T>,
    out: &mut Vec<u64>,
) -> u64 {
    let mut sum = key.begin(anchor);
    let mut keys = key.nh.iter();
    let mut add = |sum: u128, stretch: &[T; STRETCH]| {
        let Some(words) = keys.next() else {
            keys = key.nh[1..].iter();
            return key
                .begin(key.hash(sum))
                .wrapping_add(shrink(&key.nh[0], stretch));
        };
        sum.wrapping_add(shrink(words, stretch))
    };
    for block in blocks {
        let (stretches, rest) = block.as_chunks::<STRETCH>();
        for stretch in stretches {
            sum = add(sum, stretch);
        }
        if !rest.is_empty() {
            let mut padded = [T::default(); STRETCH];
            padded[..rest.len()].copy_from_slice(rest);
            sum = add(sum, &padded);
        }
        anchor = key.hash(sum);
        out.push(anchor);
    }
    anchor
}

/// NH of a stretch: the words, two tokens each, are added to those of the key and multiplied in pairs.
#[inline]
fn shrink<T: TokenId>(key: &[u64; STRETCH / 2], stretch: &[T; STRETCH]) -> u128 {
    let token = |at: usize| u64::from(stretch[at].number());
    let word = |at: usize| token(2 * at) | token(2 * at + 1) << 32;
    let factor = |at: usize| u128::from(word(at).wrapping_add(key[at]));
    (0..4).fold(0, |sum: u128, pair| {
        sum.wrapping_add(factor(2 * pair) * factor(2 * pair + 1))
    })
}

fn first_half(block: &Block) -> u64 {
    let (halves, _) = block.as_chunks::<8>();
    nonzero(u64::from_le_bytes(halves[0]))
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
        0x7817_33bc_3c8f_67fe,
        0x908e_3870_1b4b_76c7,
        0x6b35_11e7_40d5_b8e2,
        0x4f22_1793_7056_9b0b,
    ];

    fn key() -> HashKey {
        HashKey::derive(b"secret")
    }

    fn chain(tokens: &[u32], block_size: usize) -> Vec<u64> {
        let mut hashes = Vec::new();
        extend_chain(&key(), 7, tokens, block_size, &mut hashes);
        hashes
    }

    /// By the definition, word by word: of one stretch after another, `ends` saying after how many of them a
    /// block ends.
    fn defined(stretches: &[Vec<u32>], ends: &[usize]) -> Vec<u64> {
        let key = key();
        let mut anchor = 7u64;
        let mut sum = 0u128;
        let mut hashes = vec![];
        for (count, stretch) in stretches.iter().enumerate() {
            let of_group = count % GROUP;
            if of_group == 0 {
                let [added, factor] = key.anchor;
                sum = u128::from(anchor.wrapping_add(added)) * u128::from(factor);
            }
            let token = |index: usize| u64::from(stretch.get(index).copied().unwrap_or(0));
            let word = |index: usize| token(2 * index) + (token(2 * index + 1) << 32);
            let factor =
                |index: usize| u128::from(word(index).wrapping_add(key.nh[of_group][index]));
            for pair in 0..4 {
                sum = sum.wrapping_add(factor(2 * pair) * factor(2 * pair + 1));
            }
            let mut block: Block = sum.to_le_bytes().into();
            key.aes.encrypt_block(&mut block);
            let hash = u64::from_le_bytes(block[..8].try_into().unwrap());
            if ends.contains(&(count + 1)) {
                hashes.push(hash);
            }
            if of_group + 1 == GROUP || ends == [count + 1] {
                anchor = hash;
            }
        }
        hashes
    }

    fn tokens(count: u32) -> Vec<u32> {
        (0..count).map(|i| i.wrapping_mul(0x9e37_79b9)).collect()
    }

    #[test]
    fn hash_is_half_of_aes_of_what_nh_leaves_of_the_group_and_its_anchor() {
        for (block_size, of_block) in [(1, 1), (4, 1), (16, 1), (24, 2), (32, 2), (64, 4), (128, 8)]
        {
            let tokens = tokens(403);
            let stretches: Vec<Vec<u32>> = tokens
                .chunks_exact(block_size)
                .flat_map(|block| block.chunks(STRETCH).map(<[u32]>::to_vec))
                .collect();
            let ends: Vec<usize> = (1..=403 / block_size).map(|n| n * of_block).collect();
            assert_eq!(chain(&tokens, block_size), defined(&stretches, &ends));
        }
    }

    #[test]
    fn a_block_longer_than_a_group_is_several_groups() {
        let tokens = tokens(400);
        let stretches: Vec<Vec<u32>> = tokens.chunks(STRETCH).map(<[u32]>::to_vec).collect();
        assert_eq!(chain(&tokens, 400), defined(&stretches, &[25]));
        assert_eq!(chain(&tokens, 144)[..1], defined(&stretches, &[9]));
    }

    #[test]
    fn known_hashes_do_not_change_within_a_version() {
        let tokens: Vec<u32> = (0..40).collect();
        let mut hashes = chain(&tokens[..32], 16);
        extend_chain(&key(), u64::MAX, &tokens, 40, &mut hashes);
        extend_chain(&key(), 7, &[1, u32::MAX], 2, &mut hashes);
        assert_eq!(hashes, KNOWN);
    }

    #[test]
    fn every_token_counts_from_its_block_on() {
        for block_size in [16, 20, 200] {
            let tokens = tokens(600);
            let hashes = chain(&tokens, block_size);
            for place in 0..tokens.len() {
                let mut others = tokens.clone();
                others[place] ^= 1 << 31;
                for (block, (hash, other)) in
                    hashes.iter().zip(chain(&others, block_size)).enumerate()
                {
                    let before = (block + 1) * block_size <= place;
                    assert_eq!(*hash == other, before, "token {place}, block {block}");
                }
            }
        }
    }

    #[test]
    fn a_block_of_zeros_is_not_the_end() {
        for block_size in [1, 4, 16, 64] {
            let mut hashes = chain(&[0; 1024], block_size);
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 1024 / block_size);
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
    fn tokens_are_hashed_where_they_stand_in_a_message() {
        for block_size in [3, 16, 32, 200] {
            let tokens = tokens(700);
            let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
            let message = [&[0], &*bytes].concat();
            let (wire, []) = message[1..].as_chunks::<4>() else {
                panic!("whole ids");
            };
            let mut hashes = Vec::new();
            extend_chain(&key(), 7, wire, block_size, &mut hashes);
            assert_eq!(hashes, chain(&tokens, block_size));
        }
    }

    #[test]
    fn a_chain_can_be_extended_from_where_a_group_begins() {
        for block_size in [3, 16, 32, 48, 100, 200] {
            let tokens = tokens(1000);
            let whole = chain(&tokens, block_size);
            for group in 1..=3 {
                let blocks = group * blocks_in_group(block_size);
                let mut rest = Vec::new();
                let (anchor, later) = (whole[blocks - 1], &tokens[blocks * block_size..]);
                extend_chain(&key(), anchor, later, block_size, &mut rest);
                assert_eq!(rest, whole[blocks..]);
            }
        }
    }

    #[test]
    fn another_key_or_anchor_gives_another_chain() {
        let hash = |key: &HashKey, anchor: u64| {
            let mut hashes = Vec::new();
            extend_chain(key, anchor, &[1], 1, &mut hashes);
            hashes[0]
        };
        assert_ne!(hash(&key(), 7), hash(&HashKey::derive(b"other"), 7));
        assert_ne!(hash(&key(), 7), hash(&key(), 8));
    }
}
