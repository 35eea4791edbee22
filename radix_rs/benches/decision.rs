//! A whole decision from token ids, and its parts: hashing, the walk of the index with the cost of every replica,
//! and the choice. `tests/bench/decision.py` runs it and says what the fleet is like.
//!
//! `decision REPLICAS PICKS` prints one JSON object: microseconds at the median and the 99th percentile; `cold` is a
//! whole decision on a prompt that nobody holds, so that all replicas cost nearly the same.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers are small"
)]
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use prost::Message;
use radix_rs::chain::{HASH_VERSION, HashKey, extend_chain, namespace_seed};
use radix_rs::delta::{DeltaBatch, DeltaEvent, Event, Load, LoadClass, PrefillOrder, Stored};
use radix_rs::pick::{PolicyKind, Prompt, Router, Settings};

const BLOCK: u32 = 16;
const SYSTEM_TOKENS: usize = 2048;
const PROMPT_TOKENS: usize = 16_384;
/// Conversations cached on each replica, and prompts in flight there.
const CONVERSATIONS: usize = 16;
const IN_FLIGHT: usize = 2;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|each| each != "--bench");
    let replicas: usize = arguments.next().map_or(64, |each| each.parse().unwrap());
    let picks: usize = arguments.next().map_or(4000, |each| each.parse().unwrap());
    let key = HashKey::derive(b"decision");
    let router = Router::new(&Settings::new(key.clone(), PolicyKind::Cost));
    for replica in 0..replicas {
        fill(&router, &key, replica);
    }
    let mut in_flight = VecDeque::new();
    let mut pick = |tokens: &[u32], number: usize| {
        let asked = Prompt {
            tokens,
            model: "m",
            extra_key: "",
            cache_salt: "",
        };
        let start = Instant::now();
        let picked = black_box(router.pick(asked, &[], number as f64 * 1e-3)).unwrap();
        let took = start.elapsed();
        in_flight.push_back(picked.ticket);
        if in_flight.len() > IN_FLIGHT * replicas {
            router.release(in_flight.pop_front().unwrap());
        }
        (took, picked.available > 0)
    };
    let mut whole = Vec::new();
    let mut hashing = Vec::new();
    let mut cold = Vec::new();
    for number in 0..picks {
        let tokens = prompt(number % replicas, number / replicas % CONVERSATIONS, number);
        let start = Instant::now();
        let mut chain = Vec::with_capacity(tokens.len() / BLOCK as usize);
        let seed = namespace_seed(&key, "m", "", "");
        extend_chain(&key, seed, &tokens, BLOCK as usize, &mut chain);
        black_box(&chain);
        hashing.push(start.elapsed());
        let (took, is_cached) = pick(&tokens, number);
        assert!(is_cached);
        whole.push(took);
    }
    for number in picks..picks + picks / 4 {
        let mut tokens = prompt(0, 0, number);
        tokens[0] = number as u32 + 1;
        let (took, is_cached) = pick(&tokens, number);
        assert!(!is_cached);
        cold.push(took);
    }
    let at = |times: &[Duration], part: f64| {
        let mut sorted = times[times.len() / 4..].to_vec();
        sorted.sort_unstable();
        sorted[(sorted.len() as f64 * part) as usize].as_secs_f64() * 1e6
    };
    println!(
        "{{\"p50\": {:.2}, \"p99\": {:.2}, \"hash_p50\": {:.2}, \"hash_p99\": {:.2}, \"cold_p50\": {:.2}}}",
        at(&whole, 0.5),
        at(&whole, 0.99),
        at(&hashing, 0.5),
        at(&hashing, 0.99),
        at(&cold, 0.5)
    );
}

/// A system prompt that all replicas hold, a conversation of one replica, and a turn of its own.
fn prompt(replica: usize, conversation: usize, turn: usize) -> Vec<u32> {
    let numbers = |seed: usize, len: usize| (0..len).map(move |place| (seed * 7919 + place) as u32);
    let own = PROMPT_TOKENS - SYSTEM_TOKENS - 256;
    numbers(1, SYSTEM_TOKENS)
        .chain(numbers(1000 + replica * CONVERSATIONS + conversation, own))
        .chain(numbers(1_000_000 + turn, 256))
        .collect()
}

fn fill(router: &Router, key: &HashKey, replica: usize) {
    let name = format!("replica-{replica}");
    router.add_replica(&name, "m", BLOCK).unwrap();
    router.set_eligible(&name, true).unwrap();
    let mut held = std::collections::HashSet::new();
    let mut events = Vec::new();
    for conversation in 0..CONVERSATIONS {
        let tokens = prompt(replica, conversation, 0);
        let mut hashes = Vec::new();
        let seed = namespace_seed(key, "m", "", "");
        let cached = &tokens[..tokens.len() - 256];
        extend_chain(key, seed, cached, BLOCK as usize, &mut hashes);
        held.extend(hashes.iter().copied());
        events.push(Event::Stored(Stored { parent: 0, hashes }));
    }
    let waiting = [300u64, 2_000, 9_000, 40_000];
    let load = Load {
        running: 8,
        waiting: 4,
        pending_tokens: waiting.iter().sum(),
        classes: waiting
            .iter()
            .map(|&tokens| LoadClass {
                log2: tokens.ilog2(),
                requests: 1,
                tokens,
            })
            .collect(),
        order: PrefillOrder::Shortest as i32,
        total_slots: 1_000_000,
        chunk_tokens: 4096,
        prefill_tokens_per_s: 20_000,
        ..Load::default()
    };
    let batch = DeltaBatch {
        epoch: 1,
        seq: 1,
        block_size: BLOCK,
        hash_version: HASH_VERSION,
        events: events
            .into_iter()
            .map(|event| DeltaEvent { event: Some(event) })
            .collect(),
        load: Some(load),
        count: held.len() as u64,
        digest: held.iter().fold(0, |sum, &hash| sum.wrapping_add(hash)),
    };
    let applied = router
        .apply_snapshot(&name, &batch.encode_to_vec(), true)
        .unwrap();
    assert_eq!(applied.outcome.name(), "applied");
}
