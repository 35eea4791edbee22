//! Tokens of parts of texts that came before: of system prompts, and of the earlier turns of a chat.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::Namespace;

/// What a cache keeps, at most: 32 MiB.
const MAX_TOKENS: usize = 8 << 20;

/// What keeping a part costs beside its tokens.
const PART_TOKENS: usize = 32;

/// Shorter parts are tokenised anew: that costs no more than a look-up would be worth.
const MIN_BYTES: usize = 64;

/// Parts by a hash of 128 bits under keys of this process, with their namespace: no text is kept, and how
/// long an answer takes tells nothing of what another namespace has sent.
#[derive(Debug)]
pub(super) struct Known {
    keys: [RandomState; 2],
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    ids: LruCache<[u64; 2], Arc<[u32]>>,
    tokens: usize,
}

impl Known {
    pub fn new() -> Self {
        Self {
            keys: [RandomState::new(), RandomState::new()],
            parts: Mutex::new(Parts {
                ids: LruCache::unbounded(),
                tokens: 0,
            }),
        }
    }

    /// The tokens of `part`, from `tokenise` if they are not known.
    pub fn ids<E>(
        &self,
        namespace: Namespace<'_>,
        part: &str,
        tokenise: impl FnOnce() -> Result<Arc<[u32]>, E>,
    ) -> Result<Arc<[u32]>, E> {
        if part.len() < MIN_BYTES {
            return tokenise();
        }
        let name = self
            .keys
            .each_ref()
            .map(|key| key.hash_one((namespace, part)));
        if let Some(ids) = self.parts().ids.get(&name) {
            return Ok(ids.clone());
        }
        let ids = tokenise()?;
        self.parts().keep(name, ids.clone());
        Ok(ids)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parts {
    fn keep(&mut self, name: [u64; 2], ids: Arc<[u32]>) {
        self.tokens += ids.len() + PART_TOKENS;
        if let Some(before) = self.ids.put(name, ids) {
            self.tokens -= before.len() + PART_TOKENS;
        }
        while self.tokens > MAX_TOKENS
            && let Some((_, oldest)) = self.ids.pop_lru()
        {
            self.tokens -= oldest.len() + PART_TOKENS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(cache: &Known, part: &str, ids: usize) -> bool {
        let mut is_known = true;
        let got = cache.ids(Namespace::default(), part, || {
            is_known = false;
            Ok::<_, ()>(vec![7; ids].into())
        });
        assert_eq!(got.unwrap().len(), ids);
        is_known
    }

    #[test]
    fn a_part_is_tokenised_once_unless_it_is_short() {
        let cache = Known::new();
        let long = "a".repeat(MIN_BYTES);
        assert!(!known(&cache, &long, 3) && known(&cache, &long, 3));
        assert!(!known(&cache, "short", 1) && !known(&cache, "short", 1));
    }

    const HALF: usize = MAX_TOKENS / 2 - PART_TOKENS;

    #[test]
    fn the_least_recently_used_parts_go_first() {
        let cache = Known::new();
        let [a, b, c] = ["a", "b", "c"].map(|letter| letter.repeat(MIN_BYTES));
        for part in [&a, &b, &a, &c] {
            known(&cache, part, HALF);
        }
        assert!(known(&cache, &a, HALF) && known(&cache, &c, HALF));
        assert!(!known(&cache, &b, HALF));
        assert_eq!(cache.parts().tokens, MAX_TOKENS);
    }

    #[test]
    fn namespaces_know_nothing_of_each_other() {
        let cache = Known::new();
        let long = "a".repeat(MIN_BYTES);
        known(&cache, &long, 1);
        let salted = Namespace {
            extra_key: "",
            cache_salt: "s",
        };
        assert_eq!(cache.ids(salted, &long, || Err("asked")), Err("asked"));
    }

    #[test]
    fn a_failure_is_not_kept() {
        let cache = Known::new();
        let long = "a".repeat(MIN_BYTES);
        assert_eq!(
            cache.ids(Namespace::default(), &long, || Err("no")),
            Err("no")
        );
        assert!(!known(&cache, &long, 1));
    }
}
