//! Routers, replicas' batches and prompts that the tests of picks are made of.

use prost::Message;

use super::{Pick, PolicyKind, Prompt, Router, Settings};
use crate::chain::{HASH_VERSION, HashKey, extend_chain, namespace_seed};
use crate::delta::{DeltaBatch, DeltaEvent, Event, Load, LoadClass, PrefillOrder, Stored};
use crate::index::Outcome;

pub(super) const BLOCK: u32 = 4;
pub(super) const SEED: u64 = 7;

fn key() -> HashKey {
    HashKey::derive(b"secret")
}

pub(super) fn router(policy: PolicyKind) -> Router {
    Router::new(&Settings {
        seed: SEED,
        ..Settings::new(key(), policy)
    })
}

/// A router of eligible replicas r0, r1, ... of model "m", each at epoch 1 with nothing cached and no work.
pub(super) fn fleet(policy: PolicyKind, replicas: usize) -> Router {
    let router = router(policy);
    for index in 0..replicas {
        let name = format!("r{index}");
        router.add_replica(&name, "m", BLOCK).unwrap();
        router.set_eligible(&name, true).unwrap();
        let start = batch(0, vec![], &[], idle());
        router
            .apply_snapshot(&name, &start.encode_to_vec(), true)
            .unwrap();
    }
    router
}

pub(super) fn idle() -> Load {
    Load {
        order: PrefillOrder::Shortest as i32,
        ..Load::default()
    }
}

/// Prompts that wait, by their remaining tokens.
pub(super) fn waiting(tokens: &[u64]) -> Load {
    let class = |&tokens: &u64| LoadClass {
        log2: tokens.ilog2(),
        requests: 1,
        tokens,
    };
    Load {
        waiting: u32::try_from(tokens.len()).unwrap(),
        pending_tokens: tokens.iter().sum(),
        classes: tokens.iter().map(class).collect(),
        ..idle()
    }
}

/// A batch of epoch 1 after which the tree holds `held`.
pub(super) fn batch(seq: u64, events: Vec<Event>, held: &[u64], load: Load) -> DeltaBatch {
    let events = events.into_iter().map(Some);
    DeltaBatch {
        epoch: 1,
        seq,
        block_size: BLOCK,
        hash_version: HASH_VERSION,
        events: events.map(|event| DeltaEvent { event }).collect(),
        load: Some(load),
        count: held.len() as u64,
        digest: held.iter().fold(0, |sum, &hash| sum.wrapping_add(hash)),
    }
}

pub(super) fn apply(router: &Router, name: &str, batch: &DeltaBatch) -> Outcome {
    router.apply(name, &batch.encode_to_vec()).unwrap().outcome
}

pub(super) fn stored(hashes: &[u64]) -> Event {
    Event::Stored(Stored {
        parent: 0,
        hashes: hashes.to_vec(),
    })
}

pub(super) fn prompt(tokens: &[u32]) -> Prompt<'_> {
    Prompt {
        tokens,
        model: "m",
        extra_key: "",
        cache_salt: "",
    }
}

pub(super) fn chain(tokens: &[u32]) -> Vec<u64> {
    let mut hashes = Vec::new();
    let seed = namespace_seed(&key(), "m", "", "");
    extend_chain(&key(), seed, tokens, BLOCK as usize, &mut hashes);
    hashes
}

pub(super) fn tokens(start: u32, len: u32) -> Vec<u32> {
    (start..start + len).collect()
}

pub(super) fn pick(router: &Router, tokens: &[u32], now_s: f64) -> Pick {
    router.pick(prompt(tokens), &[], now_s).unwrap()
}
