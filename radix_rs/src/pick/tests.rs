//! What a pick must never do, and what bursts, ties and faults of the stream lead to.

#![expect(
    clippy::float_cmp,
    reason = "terms are sums of small whole numbers, which floats hold exactly"
)]

use proptest::prelude::*;
use prost::Message;

use super::test_fleet::{
    BLOCK, apply, batch, chain, fleet, idle, pick, prompt, router, stored, tokens, waiting,
};
use super::{Hashed, PolicyKind, Reason, Router, Rules};
use crate::delta::{Dropped, Event, Expected, Load, PrefillOrder, Removed, Stored};
use crate::error::RouterError;
use crate::index::Outcome;

#[test]
fn a_prompt_goes_where_its_prefix_is() {
    let router = fleet(PolicyKind::Cost, 4);
    let text = tokens(0, 40);
    let held = chain(&text);
    assert_eq!(
        apply(&router, "r2", &batch(1, vec![stored(&held)], &held, idle())),
        Outcome::Applied
    );
    let picked = pick(&router, &text, 0.0);
    assert_eq!(
        (picked.replica.as_str(), picked.reason),
        ("r2", Reason::Prefix)
    );
    assert_eq!((picked.matched, picked.available), (40, 40));
}

#[test]
fn a_chain_of_other_blocks_than_the_model_s_finds_nobody() {
    let router = fleet(PolicyKind::Cost, 1);
    let text = tokens(0, 40);
    let (chain, block_size) = router.hash(prompt(&text)).unwrap();
    let picked = |block_size| {
        let hashed = Hashed {
            model: "m",
            chain: &chain,
            block_size,
            tokens: 40,
        };
        router.pick_hashed(&hashed, &[], 0.0, &mut || ())
    };
    assert_eq!(block_size, BLOCK);
    assert!(picked(BLOCK).is_some());
    assert!(picked(2 * BLOCK).is_none());
}

#[test]
fn a_prefix_is_left_when_waiting_for_it_costs_more() {
    let router = fleet(PolicyKind::Cost, 2);
    let text = tokens(0, 40);
    let held = chain(&text)[..5].to_vec();
    let busy = waiting(&[16, 16, 16]);
    apply(&router, "r0", &batch(1, vec![stored(&held)], &held, busy));
    let picked = pick(&router, &text, 0.0);
    assert_eq!(
        (picked.replica.as_str(), picked.reason),
        ("r1", Reason::Load)
    );
    assert_eq!((picked.matched, picked.available), (0, 20));
}

#[test]
fn other_weights_lead_to_another_pick_from_then_on() {
    let router = fleet(PolicyKind::Cost, 2);
    let text = tokens(0, 40);
    let held = chain(&text)[..5].to_vec();
    let busy = waiting(&[16, 16, 16]);
    apply(&router, "r0", &batch(1, vec![stored(&held)], &held, busy));
    let mut rules = Rules::default();
    for (k, replica) in [(1.75, "r1"), (4.0, "r0"), (1.75, "r1")] {
        rules.weights.k = k;
        router.follow(&rules);
        let picked = pick(&router, &text, 0.0);
        assert_eq!(picked.replica, replica);
        router.release(picked.ticket);
    }
}

#[test]
fn a_long_queue_of_long_prompts_keeps_no_short_one_from_its_prefix() {
    let router = fleet(PolicyKind::Cost, 2);
    let text = tokens(0, 400);
    let held = chain(&text)[..99].to_vec();
    let busy = waiting(&[9000, 9000, 9000]);
    apply(&router, "r0", &batch(1, vec![stored(&held)], &held, busy));
    assert_eq!(pick(&router, &text, 0.0).replica, "r0");
}

#[test]
fn under_first_come_first_served_all_that_waits_is_ahead() {
    let router = fleet(PolicyKind::Cost, 1);
    let load = Load {
        order: PrefillOrder::Fcfs as i32,
        ..waiting(&[9000, 9000])
    };
    apply(&router, "r0", &batch(1, vec![], &[], load));
    let terms = router.explain(prompt(&tokens(0, 100)), 0.0)[0]
        .candidate
        .terms;
    assert_eq!((terms.ahead, terms.delayed_requests), (18_000.0, 0.0));
    assert_eq!(terms.cost, 18_000.0 + 100.0 * 1.75 * 2.1);
}

#[test]
fn a_prompt_in_flight_and_reported_counts_once() {
    let router = fleet(PolicyKind::Cost, 1);
    let (first, second) = (tokens(0, 64), tokens(1000, 200));
    let ahead = || {
        router.explain(prompt(&second), 0.0)[0]
            .candidate
            .terms
            .ahead
    };
    let picked = pick(&router, &first, 0.0);
    assert_eq!(ahead(), 64.0);
    apply(&router, "r0", &batch(1, vec![], &[], waiting(&[64])));
    assert_eq!(ahead(), 64.0);
    // A batch made before the prompt arrived there must not hide it.
    apply(&router, "r0", &batch(2, vec![], &[], idle()));
    assert_eq!(ahead(), 64.0);
    router.prefilled(picked.ticket);
    assert_eq!(ahead(), 0.0);
    // Another router's prompt, and one more of ours that the report cannot hold yet.
    apply(&router, "r0", &batch(3, vec![], &[], waiting(&[64])));
    pick(&router, &first, 0.0);
    assert_eq!(ahead(), 128.0);
}

#[test]
fn a_burst_of_one_new_prefix_stays_together() {
    let router = fleet(PolicyKind::Cost, 8);
    let system = tokens(0, 4000);
    let picks: Vec<_> = (0..10)
        .map(|user| {
            let text = [system.clone(), tokens(10_000 + user * 100, 8)].concat();
            pick(&router, &text, 0.0)
        })
        .collect();
    assert_eq!(picks[0].reason, Reason::Cold);
    for later in &picks[1..] {
        assert_eq!(later.replica, picks[0].replica);
        assert_eq!((later.reason, later.matched), (Reason::Prefix, 0));
    }
}

#[test]
fn cold_prompts_spread_over_an_idle_fleet() {
    for policy in [
        PolicyKind::Cost,
        PolicyKind::RoundRobin,
        PolicyKind::LeastLoad,
    ] {
        let router = fleet(policy, 8);
        let mut hits: Vec<_> = (0..8)
            .map(|i| pick(&router, &tokens(i * 1000, 100), 0.0).replica)
            .collect();
        hits.sort();
        hits.dedup();
        assert_eq!(hits.len(), 8, "{policy:?}");
    }
}

#[test]
fn ties_of_an_idle_fleet_are_spread_when_nothing_overlaps() {
    for policy in [PolicyKind::Cost, PolicyKind::Random, PolicyKind::LeastLoad] {
        let router = fleet(policy, 4);
        let mut hits = [0; 4];
        for i in 0..400 {
            let picked = pick(&router, &tokens(i * 10, 3), 0.0);
            router.release(picked.ticket);
            hits[usize::from(picked.replica.as_bytes()[1] - b'0')] += 1;
        }
        assert!(hits.iter().all(|&n| n > 50), "{policy:?}: {hits:?}");
    }
}

#[test]
fn equal_costs_go_to_the_emptiest_cache() {
    let router = fleet(PolicyKind::Cost, 3);
    for name in ["r0", "r2"] {
        let held = chain(&tokens(0, 40));
        apply(&router, name, &batch(1, vec![stored(&held)], &held, idle()));
    }
    let picked = pick(&router, &tokens(5000, 40), 0.0);
    assert_eq!(
        (picked.replica.as_str(), picked.reason),
        ("r1", Reason::Cold)
    );
}

#[test]
fn a_replica_that_decodes_much_gets_less_cold_work() {
    let router = fleet(PolicyKind::Cost, 2);
    let load = Load {
        running: 10,
        ..idle()
    };
    apply(&router, "r0", &batch(1, vec![], &[], load));
    for i in 0..20 {
        let picked = pick(&router, &tokens(i * 100, 50), 0.0);
        assert_eq!(picked.replica, "r1");
        router.release(picked.ticket);
    }
}

#[test]
fn expected_blocks_end_when_stored_prefilled_released_or_too_old() {
    let text = tokens(0, 40);
    let expected =
        |router: &Router, now_s| router.explain(prompt(&text), now_s)[0].candidate.expected;
    let router = fleet(PolicyKind::Cost, 1);
    let held = chain(&text);

    let picked = pick(&router, &text, 0.0);
    assert_eq!(expected(&router, 1.0), 40);
    router.prefilled(picked.ticket);
    assert_eq!(expected(&router, 1.0), 0);
    router.release(picked.ticket);

    let picked = pick(&router, &text, 2.0);
    router.release(picked.ticket);
    assert_eq!(expected(&router, 2.0), 0);

    let picked = pick(&router, &text, 3.0);
    assert_eq!(expected(&router, 62.9), 40);
    assert_eq!(expected(&router, 63.0), 0);
    assert_eq!(router.in_flight("r0").unwrap(), 1);
    router.release(picked.ticket);

    // Half of it stored: half of the work is left. All stored and evicted again: nothing is expected.
    pick(&router, &text, 70.0);
    apply(
        &router,
        "r0",
        &batch(1, vec![stored(&held[..5])], &held[..5], idle()),
    );
    let left = |router: &Router| {
        router.explain(prompt(&tokens(500, 90)), 70.0)[0]
            .candidate
            .terms
            .ahead
    };
    assert_eq!((expected(&router, 70.0), left(&router)), (40, 20.0));
    let rest = Event::Stored(Stored {
        parent: held[4],
        hashes: held[5..].to_vec(),
    });
    apply(&router, "r0", &batch(2, vec![rest], &held, idle()));
    let all = Event::Removed(Removed::of(&held[..10]).unwrap());
    apply(&router, "r0", &batch(3, vec![all], &[], idle()));
    assert_eq!((expected(&router, 70.0), left(&router)), (0, 0.0));
}

#[test]
fn a_removed_replica_leaves_nothing_behind() {
    let router = fleet(PolicyKind::Cost, 1);
    let text = tokens(0, 40);
    let held = chain(&text);
    apply(&router, "r0", &batch(1, vec![stored(&held)], &held, idle()));
    let picked = pick(&router, &text, 0.0);
    router.remove_replica("r0");
    assert_eq!(
        router.apply("r0", &batch(2, vec![], &held, idle()).encode_to_vec()),
        Err(RouterError::UnknownReplica("r0".to_owned()))
    );
    router.add_replica("r0", "m", BLOCK).unwrap();
    router.release(picked.ticket);
    let mirror = router.mirror("r0").unwrap();
    assert_eq!(
        (mirror.epoch, mirror.seq, mirror.count, mirror.digest),
        (0, 0, 0, 0)
    );
    assert_eq!(router.in_flight("r0").unwrap(), 0);
    assert!(router.pick(prompt(&text), &[], 0.0).is_none());
    assert_eq!(router.explain(prompt(&text), 0.0)[0].candidate.expected, 0);
}

#[test]
fn a_model_has_one_block_size() {
    let router = router(PolicyKind::Cost);
    router.add_replica("a", "m", 16).unwrap();
    let error = router.add_replica("b", "m", 32).unwrap_err().to_string();
    assert!(error.contains("32") && error.contains("16"), "{error}");
    assert!(router.add_replica("b", "m", 0).is_err());
    assert!(router.add_replica("a", "m", 16).is_err());
    router.add_replica("c", "other", 32).unwrap();
    router.remove_replica("a");
    router.add_replica("b", "m", 32).unwrap();
}

#[test]
fn a_peek_changes_nothing_and_says_what_the_next_pick_will() {
    for policy in PolicyKind::ALL {
        let router = fleet(policy, 5);
        for i in 0..20 {
            let text = tokens(i * 100, 30);
            let peek = router.peek(prompt(&text), 0.0).unwrap();
            assert_eq!(peek.ticket, 0);
            assert_eq!(pick(&router, &text, 0.0).replica, peek.replica);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pick {
        text: u32,
        exclude: usize,
    },
    Prefilled(usize),
    Release(usize),
    Fail(usize),
    Overload(usize),
    Doubt(usize),
    Eligible(usize, bool),
    Report {
        replica: usize,
        draining: bool,
        waiting: Vec<u64>,
    },
    Store {
        replica: usize,
        text: u32,
    },
    Expect {
        replica: usize,
        text: u32,
    },
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6u32, 0..6usize).prop_map(|(text, exclude)| Step::Pick { text, exclude }),
        2 => (0..40usize).prop_map(Step::Prefilled),
        2 => (0..40usize).prop_map(Step::Release),
        3 => (0..40usize).prop_map(Step::Fail),
        1 => (0..40usize).prop_map(Step::Overload),
        1 => (0..6usize).prop_map(Step::Doubt),
        1 => (0..6usize, any::<bool>()).prop_map(|(r, on)| Step::Eligible(r, on)),
        2 => (0..6usize, prop::bool::weighted(0.3), prop::collection::vec(1..5000u64, 0..4))
            .prop_map(|(replica, draining, waiting)| Step::Report { replica, draining, waiting }),
        2 => (0..6usize, 0..6u32).prop_map(|(replica, text)| Step::Store { replica, text }),
        2 => (0..6usize, 0..6u32).prop_map(|(replica, text)| Step::Expect { replica, text }),
        1 => (0..40usize).prop_map(Step::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_pick_is_always_one_that_may_be_picked_and_all_ends_when_released(
        steps in prop::collection::vec(step(), 1..80),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        // r0 to r3 serve "m", r4 and r5 another model whose prompts would hash alike.
        let router = router(policy);
        let names: Vec<_> = (0..6).map(|i| format!("r{i}")).collect();
        for (i, name) in names.iter().enumerate() {
            router.add_replica(name, if i < 4 { "m" } else { "n" }, BLOCK).unwrap();
            let start = batch(0, vec![], &[], idle()).encode_to_vec();
            router.apply_snapshot(name, &start, true).unwrap();
        }
        let (mut eligible, mut draining) = ([false; 6], [false; 6]);
        let mut held = vec![Vec::new(); 6];
        let mut seqs = [0; 6];
        let mut tickets = Vec::new();
        let mut announced = Vec::new();
        for step in steps {
            match step {
                Step::Pick { text, exclude } => {
                    let text = tokens(text * 50, 30);
                    let exclude = [names[exclude].clone()];
                    let may: Vec<_> = (0..4)
                        .filter(|&i| eligible[i] && !draining[i] && names[i] != exclude[0])
                        .collect();
                    let picked = router.pick(prompt(&text), &exclude, 0.0);
                    match picked {
                        None => prop_assert!(may.is_empty()),
                        Some(picked) => {
                            let at = names.iter().position(|name| *name == picked.replica).unwrap();
                            prop_assert!(may.contains(&at));
                            prop_assert!(picked.matched <= picked.available);
                            let whole = chain(&text);
                            let matched = whole.iter().take_while(|h| held[at].contains(*h)).count() as u64;
                            prop_assert_eq!(picked.matched, matched * u64::from(BLOCK));
                            tickets.push(picked.ticket);
                        }
                    }
                }
                Step::Prefilled(i) => {
                    router.prefilled(tickets.get(i).copied().unwrap_or(999));
                }
                // What answers say may move a pick, but is never the reason that there is none.
                Step::Fail(i) => {
                    router.failed(tickets.get(i).copied().unwrap_or(999), 0.0);
                }
                Step::Overload(i) => {
                    router.overloaded(tickets.get(i).copied().unwrap_or(999), 9.0);
                }
                Step::Doubt(i) => router.doubt(&names[i]).unwrap(),
                Step::Release(i) => router.release(tickets.get(i).copied().unwrap_or(999)),
                Step::Eligible(i, on) => {
                    eligible[i] = on;
                    router.set_eligible(&names[i], on).unwrap();
                }
                Step::Report { replica, draining: drain, waiting: tokens } => {
                    draining[replica] = drain;
                    seqs[replica] += 1;
                    let load = Load { draining: drain, ..waiting(&tokens) };
                    let batch = batch(seqs[replica], vec![], &held[replica], load);
                    prop_assert_eq!(apply(&router, &names[replica], &batch), Outcome::Applied);
                }
                Step::Store { replica, text } => {
                    let hashes = chain(&tokens(text * 50, 30));
                    let new: Vec<_> = hashes.iter().filter(|h| !held[replica].contains(*h)).copied().collect();
                    held[replica].extend(new);
                    seqs[replica] += 1;
                    let load = Load { draining: draining[replica], ..idle() };
                    let batch = batch(seqs[replica], vec![stored(&hashes)], &held[replica], load);
                    prop_assert_eq!(apply(&router, &names[replica], &batch), Outcome::Applied);
                }
                Step::Expect { replica, text } => {
                    let hashes = chain(&tokens(text * 50, 30));
                    let id = announced.len() as u64 + 1;
                    announced.push(replica);
                    let event = Event::Expected(Expected { id, start: 0, hashes });
                    seqs[replica] += 1;
                    let load = Load { draining: draining[replica], ..idle() };
                    let batch = batch(seqs[replica], vec![event], &held[replica], load);
                    prop_assert_eq!(apply(&router, &names[replica], &batch), Outcome::Applied);
                }
                Step::Drop(i) => if let Some(&replica) = announced.get(i) {
                    let event = Event::Dropped(Dropped { id: i as u64 + 1 });
                    seqs[replica] += 1;
                    let load = Load { draining: draining[replica], ..idle() };
                    let batch = batch(seqs[replica], vec![event], &held[replica], load);
                    prop_assert_eq!(apply(&router, &names[replica], &batch), Outcome::Applied);
                }
            }
        }
        for ticket in tickets {
            router.release(ticket);
        }
        for (i, name) in names.iter().enumerate() {
            prop_assert_eq!(router.in_flight(name).unwrap(), 0);
            seqs[i] += 1;
            let ids = (0..announced.len()).filter(|&id| announced[id] == i);
            let dropped = ids.map(|id| Event::Dropped(Dropped { id: id as u64 + 1 })).collect();
            apply(&router, name, &batch(seqs[i], dropped, &held[i], idle()));
        }
        for explained in router.explain(prompt(&tokens(0, 30)), 0.0) {
            let terms = explained.candidate.terms;
            prop_assert_eq!((terms.ahead, terms.delayed_requests, terms.decode_pressure), (0.0, 0.0, 0.0));
            prop_assert_eq!(explained.candidate.expected, explained.candidate.matched);
        }
    }
}
