//! The vectors of `proto/prefixlb/v1/delta.proto`, which say what the wire is, against this crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use radix_rs::chain::{
    HASH_VERSION, HashKey, blocks_in_group, extend_chain, key_check, namespace_seed,
};
use radix_rs::pick::{PolicyKind, Prompt, Router, Settings};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../proto/prefixlb/v1/vectors.json")).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn number(value: &Value) -> u64 {
    u64::from_str_radix(text(value), 16).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    list(value).iter().map(number).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let (pairs, rest) = text(value).as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    let digits = pairs.iter().map(|pair| str::from_utf8(pair).unwrap());
    digits
        .map(|digits| u8::from_str_radix(digits, 16).unwrap())
        .collect()
}

fn key(vectors: &Value) -> HashKey {
    HashKey::derive(&bytes(&vectors["secret_of_what_follows"]))
}

fn seed(key: &HashKey, of: &Value) -> u64 {
    let [model, extra_key, cache_salt] =
        ["model", "extra_key", "cache_salt"].map(|name| text(&of[name]));
    namespace_seed(key, model, extra_key, cache_salt)
}

#[test]
fn keys_follow_from_the_secret() {
    let vectors = vectors();
    assert_eq!(
        vectors["hash_version"].as_u64(),
        Some(u64::from(HASH_VERSION))
    );
    for each in list(&vectors["keys"]) {
        let key = HashKey::derive(&bytes(&each["secret"]));
        assert_eq!(key.bytes().to_vec(), bytes(&each["key"]));
        assert_eq!(key_check(&key), number(&each["key_check"]));
    }
}

#[test]
fn blocks_have_the_hashes_group_by_group_and_all_at_once() {
    let vectors = vectors();
    let key = key(&vectors);
    for each in list(&vectors["namespaces"]) {
        assert_eq!(seed(&key, each), number(&each["h0"]), "{each}");
    }
    for each in list(&vectors["chains"]) {
        let tokens: Vec<u32> = list(&each["tokens"])
            .iter()
            .map(|token| token.as_u64().unwrap().try_into().unwrap())
            .collect();
        let block_size = usize::try_from(each["block_size"].as_u64().unwrap()).unwrap();
        let mut chain = Vec::new();
        extend_chain(&key, seed(&key, each), &tokens, block_size, &mut chain);
        assert_eq!(chain, numbers(&each["hashes"]), "{each}");
        let of_group = blocks_in_group(block_size);
        let mut parts = Vec::new();
        for group in tokens.chunks(of_group * block_size) {
            let anchor = parts.last().copied();
            let anchor = anchor.unwrap_or_else(|| seed(&key, each));
            extend_chain(&key, anchor, group, block_size, &mut parts);
        }
        assert_eq!(parts, chain);
    }
}

/// A router that has taken replica "r"'s `snapshot`.
fn router(vectors: &Value, snapshot: &Value) -> Router {
    let router = Router::new(&Settings::new(key(vectors), PolicyKind::Cost));
    let block_size = vectors["block_size"].as_u64().unwrap();
    router
        .add_replica("r", "m", block_size.try_into().unwrap())
        .unwrap();
    let (last, chunks) = list(snapshot).split_last().unwrap();
    for chunk in chunks {
        router.apply_snapshot("r", &bytes(chunk), false).unwrap();
    }
    let applied = router.apply_snapshot("r", &bytes(last), true).unwrap();
    assert_eq!(applied.outcome.name(), "applied");
    router
}

#[test]
fn every_batch_has_its_outcome_and_leaves_the_blocks() {
    let vectors = vectors();
    let router = router(&vectors, &vectors["snapshot"]);
    for each in list(&vectors["batches"]) {
        let applied = router.apply("r", &bytes(&each["bytes"])).unwrap();
        assert_eq!(applied.outcome.name(), text(&each["outcome"]), "{each}");
        assert_eq!(
            router.blocks("r").unwrap(),
            numbers(&each["blocks"]),
            "{each}"
        );
        router.check().unwrap();
    }
}

#[test]
fn what_is_no_batch_of_this_kind_is_refused_and_changes_nothing() {
    let vectors = vectors();
    let router = router(&vectors, &vectors["snapshot"]);
    let before = router.blocks("r").unwrap();
    for each in list(&vectors["refused"]) {
        assert!(router.apply("r", &bytes(&each["bytes"])).is_err(), "{each}");
        assert_eq!(router.blocks("r").unwrap(), before, "{each}");
    }
}

#[test]
fn a_prompt_announced_is_expected_until_it_is_stored_or_dropped() {
    let vectors = vectors();
    let expected = &vectors["expected"];
    let router = router(&vectors, &expected["snapshot"]);
    let prompts: Vec<Vec<u32>> = serde_json::from_value(expected["tokens"].clone()).unwrap();
    for each in list(&expected["batches"]) {
        let applied = router.apply("r", &bytes(&each["bytes"])).unwrap();
        assert_eq!(applied.outcome.name(), "applied", "{each}");
        let coming = prompts.iter().map(|tokens| {
            let prompt = Prompt {
                tokens,
                model: "m",
                extra_key: "",
                cache_salt: "",
            };
            router.explain(prompt, 0.0)[0].candidate.expected
        });
        let given: Vec<u64> = serde_json::from_value(each["coming"].clone()).unwrap();
        assert_eq!(coming.collect::<Vec<_>>(), given, "{each}");
        router.check().unwrap();
    }
    assert!(router.apply("r", &bytes(&expected["refused"])).is_err());
}
