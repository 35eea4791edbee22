//! What every policy must hold to, and what each is for.

use proptest::prelude::*;
use prost::Message;

use super::test_fleet::{
    BLOCK, apply, batch, chain, fleet, idle, pick, prompt, stored, tokens, waiting,
};
use super::{Explained, PolicyKind, Reason, Router, Settings, Thresholds};
use crate::chain::HashKey;
use crate::delta::{Load, PrefillOrder};

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(PolicyKind::ALL.to_vec())
}

/// Routers of replicas with these names, all idle and empty.
fn named(settings: &Settings, names: &[String]) -> Router {
    let router = Router::new(settings);
    for name in names {
        router.add_replica(name, "m", BLOCK).unwrap();
        router.set_eligible(name, true).unwrap();
        let start = batch(0, vec![], &[], idle()).encode_to_vec();
        router.apply_snapshot(name, &start, true).unwrap();
    }
    router
}

fn hash_key() -> HashKey {
    HashKey::derive(b"secret")
}

fn names(number: usize) -> Vec<String> {
    (0..number).map(|each| format!("r{each}")).collect()
}

/// A prompt that begins unlike all others.
fn own_prompt(number: u32) -> Vec<u32> {
    tokens(number * 1000, 300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn equal_seeds_give_equal_picks(policy in policy(), seed in any::<u64>(), texts in prop::collection::vec(0..20u32, 1..60)) {
        let settings = Settings { seed, ..Settings::new(hash_key(), policy) };
        let (one, other) = (named(&settings, &names(5)), named(&settings, &names(5)));
        for text in texts {
            let text = own_prompt(text);
            prop_assert_eq!(pick(&one, &text, 0.0), pick(&other, &text, 0.0));
        }
    }

    #[test]
    fn cost_picks_the_cheapest_of_all_though_it_computes_few_costs(
        replicas in prop::collection::vec(
            (0..10usize, prop::collection::vec(1..60_000u64, 0..5), any::<bool>(), 0..40u32), 1..12,
        ),
        prompts in prop::collection::vec((0..2u32, 1..200u32), 1..12),
    ) {
        let router = fleet(PolicyKind::Cost, replicas.len());
        for (number, (blocks, waits, shortest_first, running)) in replicas.into_iter().enumerate() {
            let held = chain(&tokens(0, 40))[..blocks].to_vec();
            let order = if shortest_first { PrefillOrder::Shortest } else { PrefillOrder::Fcfs };
            let load = Load { order: order as i32, running, chunk_tokens: 512, ..waiting(&waits) };
            let report = batch(1, vec![stored(&held)], &held, load);
            apply(&router, &format!("r{number}"), &report);
        }
        for (first, len) in prompts {
            let text = tokens(first * 1000, len);
            let explained = router.explain(prompt(&text), 0.0);
            let cost = |each: &Explained| each.candidate.terms.cost;
            let least = explained.iter().map(cost).fold(f64::INFINITY, f64::min);
            let picked = pick(&router, &text, 0.0);
            let at = explained.iter().find(|each| each.replica == picked.replica).unwrap();
            prop_assert!(cost(at) <= 1.01 * least, "{} beside {least}", cost(at));
            let longest = explained.iter().map(|each| each.candidate.matched).max();
            prop_assert_eq!(Some(picked.available), longest);
        }
    }

    #[test]
    fn nobody_gets_another_namespaces_prefix(policy in policy(), salt in "[a-z]{1,8}") {
        let router = fleet(policy, 3);
        let text = tokens(0, 400);
        let held = chain(&text);
        apply(&router, "r1", &batch(1, vec![stored(&held)], &held, idle()));
        let mut foreign = prompt(&text);
        foreign.cache_salt = &salt;
        let picked = router.pick(foreign, &[], 0.0).unwrap();
        prop_assert_eq!((picked.matched, picked.available), (0, 0));
        for explained in router.explain(foreign, 0.0) {
            prop_assert_eq!(explained.candidate.matched, 0);
        }
    }

    #[test]
    fn what_drains_or_is_excluded_is_never_picked(
        policy in policy(), draining in prop::collection::vec(any::<bool>(), 6), excluded in 0..6usize, text in 0..9u32,
    ) {
        let router = fleet(policy, 6);
        let text = own_prompt(text);
        let held = chain(&text);
        for (number, &draining) in draining.iter().enumerate() {
            let load = Load { draining, ..idle() };
            // It holds the whole prompt, so that all speaks for it but this.
            apply(&router, &format!("r{number}"), &batch(1, vec![stored(&held)], &held, load));
        }
        let exclude = [format!("r{excluded}")];
        for _ in 0..8 {
            match router.pick(prompt(&text), &exclude, 0.0) {
                Some(picked) => {
                    let number: usize = picked.replica[1..].parse().unwrap();
                    prop_assert!(!draining[number] && number != excluded);
                }
                None => prop_assert!((0..6).all(|number| draining[number] || number == excluded)),
            }
        }
    }
}

#[test]
fn one_overloaded_replica_leaves_the_others_their_prompts() {
    for policy in [PolicyKind::Cost, PolicyKind::ConsistentHash] {
        let router = fleet(policy, 8);
        let homes: Vec<String> = (0..400)
            .map(|text| {
                let picked = pick(&router, &own_prompt(text), 0.0);
                router.release(picked.ticket);
                picked.replica
            })
            .collect();
        for name in names(8) {
            let of_it = (0..400u32).filter(|&text| homes[text as usize] == name);
            let runs: Vec<_> = of_it.map(|text| chain(&own_prompt(text))).collect();
            let held = runs.concat();
            let events = runs.iter().map(|run| stored(run)).collect();
            let load = if name == "r0" {
                waiting(&[250_000; 40])
            } else {
                idle()
            };
            apply(&router, &name, &batch(1, events, &held, load));
        }
        let others: Vec<u32> = (0..400)
            .filter(|&text| homes[text as usize] != "r0")
            .collect();
        let stayed = others.iter().filter(|&&text| {
            let picked = pick(&router, &own_prompt(text), 1.0);
            router.release(picked.ticket);
            picked.replica == homes[text as usize]
        });
        let (stayed, others) = (stayed.count(), others.len());
        assert!(
            100 * stayed >= 95 * others,
            "{policy:?}: {stayed} of {others}"
        );
    }
}

#[test]
fn every_policy_spreads_what_it_has_no_reason_to_keep_together() {
    for policy in PolicyKind::ALL {
        let router = fleet(policy, 4);
        let mut hits = [0; 4];
        for text in 0..400 {
            let picked = pick(&router, &own_prompt(text), 0.0);
            router.release(picked.ticket);
            hits[usize::from(picked.replica.as_bytes()[1] - b'0')] += 1;
        }
        assert!(hits.iter().all(|&hits| hits > 50), "{policy:?}: {hits:?}");
    }
}

#[test]
fn of_two_drawn_the_idler_one_is_picked_and_never_the_busiest_of_all() {
    let router = fleet(PolicyKind::PowerOfTwo, 4);
    for (name, requests) in [("r0", 9), ("r1", 5), ("r2", 5), ("r3", 5)] {
        let load = Load {
            running: requests,
            ..idle()
        };
        apply(&router, name, &batch(1, vec![], &[], load));
    }
    for text in 0..200 {
        let picked = pick(&router, &own_prompt(text), 0.0);
        router.release(picked.ticket);
        assert_ne!(picked.replica, "r0");
    }
}

fn homes(names: &[String]) -> Vec<String> {
    let router = named(
        &Settings::new(hash_key(), PolicyKind::ConsistentHash),
        names,
    );
    let home = |text| {
        let picked = pick(&router, &own_prompt(text), 0.0);
        router.release(picked.ticket);
        picked.replica
    };
    (0..1000).map(home).collect()
}

#[test]
fn a_replica_that_joins_takes_its_part_and_moves_nothing_else() {
    let mut fleet = names(9);
    let before = homes(&fleet[..8]);
    let after = homes(&fleet);
    let moved: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(old, new)| old != new)
        .collect();
    assert!(moved.iter().all(|(_, new)| *new == "r8"));
    assert!((60..170).contains(&moved.len()), "{} of 1000", moved.len());
    // The order in which routers heard of replicas does not matter.
    fleet.reverse();
    assert_eq!(homes(&fleet), after);
}

#[test]
fn a_hashed_prompt_keeps_its_home_until_that_has_more_than_its_share() {
    let router = fleet(PolicyKind::ConsistentHash, 4);
    let system = tokens(0, 256);
    let mut hits = std::collections::HashMap::<String, u32>::new();
    for user in 0..100 {
        let text = [system.clone(), tokens(10_000 + user, 8)].concat();
        let picked = pick(&router, &text, 0.0);
        assert_eq!(picked.reason, Reason::Policy);
        *hits.entry(picked.replica).or_default() += 1;
        let mean = f64::from(user + 1) / 4.0;
        let most = f64::from(*hits.values().max().unwrap());
        assert!(most <= (1.25 * mean).ceil(), "{most} of mean {mean}");
    }
    assert!(hits.values().any(|&hits| hits >= 30), "{hits:?}");
}

#[test]
fn thresholds_decide_between_the_cached_and_the_idle() {
    let thresholds = Thresholds {
        balance_abs: 4,
        ..Thresholds::default()
    };
    let mut settings = Settings::new(hash_key(), PolicyKind::CacheAware);
    settings.rules.thresholds = thresholds;
    let router = named(&settings, &names(3));
    let text = tokens(0, 400);
    let held = chain(&text[..200]);
    let load = |running| Load { running, ..idle() };
    let picked = |router: &Router, text: &[u32]| {
        let picked = pick(router, text, 0.0);
        router.release(picked.ticket);
        (picked.replica, picked.reason)
    };
    apply(
        &router,
        "r1",
        &batch(1, vec![stored(&held)], &held, load(4)),
    );
    assert_eq!(picked(&router, &text), ("r1".to_owned(), Reason::Prefix));
    // Too little of it is cached.
    let long = [tokens(0, 200), tokens(9000, 500)].concat();
    assert_eq!(picked(&router, &long).1, Reason::Load);
    // Too much is to do there.
    apply(&router, "r1", &batch(2, vec![], &held, load(5)));
    assert_eq!(picked(&router, &text).1, Reason::Load);
    // All have much to do: five more are less than half as much again.
    for name in ["r0", "r2"] {
        apply(&router, name, &batch(1, vec![], &[], load(20)));
    }
    apply(&router, "r1", &batch(3, vec![], &held, load(25)));
    assert_eq!(picked(&router, &text), ("r1".to_owned(), Reason::Prefix));
}

#[test]
fn a_cost_within_a_hundredth_of_the_lowest_is_as_good() {
    let router = fleet(PolicyKind::Cost, 2);
    let load = Load {
        running: 3,
        ..idle()
    };
    apply(&router, "r0", &batch(1, vec![], &[], load));
    let mut hits = [0; 2];
    for text in 0..100 {
        let picked = pick(&router, &own_prompt(text), 0.0);
        router.release(picked.ticket);
        hits[usize::from(picked.replica.as_bytes()[1] - b'0')] += 1;
    }
    assert!(hits.iter().all(|&hits| hits > 20), "{hits:?}");
}

#[test]
fn a_prompt_in_line_counts_once_even_if_the_replica_counts_what_it_shares() {
    // Three prompts begin alike, and the replica, which knows nothing of what is expected, reports all three whole.
    let router = fleet(PolicyKind::Cost, 1);
    let system = tokens(0, 4000);
    for user in 0..3 {
        pick(
            &router,
            &[system.clone(), tokens(10_000 + user * 100, 40)].concat(),
            0.0,
        );
    }
    let ahead = || {
        let explained = router.explain(prompt(&tokens(50_000, 8000)), 0.0);
        explained[0].candidate.terms.ahead
    };
    let alone = ahead();
    apply(
        &router,
        "r0",
        &batch(1, vec![], &[], waiting(&[4040, 4040, 4040])),
    );
    assert!((ahead() - alone).abs() < 1.0, "{alone} and {}", ahead());
    // A fourth one is another router's.
    apply(
        &router,
        "r0",
        &batch(2, vec![], &[], waiting(&[4040, 4040, 4040, 4040])),
    );
    assert!(
        (ahead() - alone - 4040.0).abs() < 1.0,
        "{alone} and {}",
        ahead()
    );
}

#[test]
fn a_prompt_that_waited_long_goes_first_and_a_chunk_is_not_interrupted() {
    let router = fleet(PolicyKind::Cost, 1);
    let load = Load {
        chunk_tokens: 400,
        prefill_tokens_per_s: 1000,
        ..waiting(&[2000])
    };
    pick(&router, &tokens(0, 2000), 0.0);
    apply(&router, "r0", &batch(1, vec![], &[], load));
    let terms = |now_s| {
        let explained = router.explain(prompt(&tokens(50_000, 1000)), now_s);
        let terms = explained[0].candidate.terms;
        (terms.ahead, terms.delayed_requests)
    };
    // Half of its first chunk is left to wait for.
    assert_eq!(terms(0.0), (200.0, 1.0));
    // After eight seconds it counts as 800 tokens smaller, and half of its chunk is done.
    assert_eq!(terms(8.0), (1800.0, 0.0));
}
