//! A breaker on a clock moved by hand, alone and in a fleet.

use std::collections::HashSet;

use proptest::prelude::*;

use super::breaker::{Breaker, BreakerLimits, BreakerState};
use super::random::Random;
use super::test_fleet::fleet;
use super::{Pick, PolicyKind, Prompt, Router};

const LIMITS: BreakerLimits = BreakerLimits {
    failures: 3,
    window_s: 10.0,
    open_s: 1.0,
    max_open_s: 8.0,
};

#[derive(Clone, Debug)]
enum Step {
    Send,
    Answer(usize),
    Fail(usize),
    End(usize),
    Overload(f64),
    Wait(f64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Send),
        3 => any::<usize>().prop_map(Step::Answer),
        4 => any::<usize>().prop_map(Step::Fail),
        3 => any::<usize>().prop_map(Step::End),
        1 => (0.0..3.0).prop_map(Step::Overload),
        3 => (0.0..4.0).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn one_request_probes_and_whatever_happened_it_heals(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut breaker = Breaker::default();
        let mut random = Random::new(1);
        let (mut now_s, mut tickets) = (0.0, 0u64);
        let mut running: Vec<u64> = Vec::new();
        let (mut failures, mut probes) = (0, HashSet::new());
        let mut overloaded_until_s: f64 = 0.0;
        for step in steps {
            let before = breaker.state(now_s);
            let is_open = matches!(before, BreakerState::Open | BreakerState::HalfOpen);
            let pick = |at: usize| (!running.is_empty()).then(|| running[at % running.len()]);
            match step {
                Step::Send => {
                    // As a pick does where there are others: only what is admitted.
                    if breaker.admits(now_s) {
                        tickets += 1;
                        breaker.sent(tickets, now_s, &LIMITS);
                        running.push(tickets);
                        if before == BreakerState::HalfOpen {
                            prop_assert!(probes.is_empty(), "{probes:?} and another probe");
                            probes.insert(tickets);
                        }
                        prop_assert_ne!(before, BreakerState::Open);
                        prop_assert!(now_s >= overloaded_until_s);
                    }
                }
                Step::Answer(at) => if let Some(ticket) = pick(at) {
                    let closes = breaker.answered(ticket);
                    prop_assert_eq!(closes, is_open && probes.contains(&ticket));
                    if closes {
                        failures = 0;
                    }
                },
                Step::Fail(at) => if let Some(ticket) = pick(at) {
                    failures += 1;
                    let opens = breaker.failed(ticket, now_s, &LIMITS, &mut random);
                    match before {
                        BreakerState::Open => prop_assert!(!opens),
                        BreakerState::HalfOpen => prop_assert_eq!(opens, probes.contains(&ticket)),
                        _ => prop_assert!(!opens || failures >= LIMITS.failures),
                    }
                    if opens {
                        prop_assert_eq!(breaker.state(now_s + LIMITS.open_s * 0.49), BreakerState::Open);
                    }
                },
                Step::End(at) => if let Some(ticket) = pick(at) {
                    breaker.ended(ticket);
                    probes.remove(&ticket);
                    running.retain(|&other| other != ticket);
                },
                Step::Overload(for_s) => {
                    breaker.overloaded(now_s + for_s);
                    overloaded_until_s = overloaded_until_s.max(now_s + for_s);
                }
                Step::Wait(for_s) => now_s += for_s,
            }
        }
        for ticket in running {
            breaker.ended(ticket);
        }
        let late_s = now_s + LIMITS.max_open_s;
        prop_assert!(breaker.admits(late_s), "{breaker:?} at {late_s}");
    }
}

/// Fails as often as it is let, and returns how long the breaker is open then.
fn open_for_s(breaker: &mut Breaker, now_s: f64, random: &mut Random) -> f64 {
    let mut ticket = 0;
    while breaker.state(now_s) != BreakerState::Open {
        ticket += 1;
        breaker.sent(ticket, now_s, &LIMITS);
        breaker.failed(ticket, now_s, &LIMITS, random);
        breaker.ended(ticket);
    }
    let mut until_s = now_s;
    while breaker.state(until_s) == BreakerState::Open {
        until_s += 0.01;
    }
    until_s - now_s
}

#[test]
fn it_stays_open_for_twice_as_long_from_try_to_try_up_to_a_bound() {
    let (mut breaker, mut random) = (Breaker::default(), Random::new(3));
    let mut now_s = 0.0;
    for longest_s in [1.0, 2.0, 4.0, 8.0, 8.0, 8.0] {
        let for_s = open_for_s(&mut breaker, now_s, &mut random);
        let range = longest_s / 2.0 - 0.02..=longest_s + 0.02;
        assert!(range.contains(&for_s), "{for_s} of {longest_s}");
        now_s += for_s;
    }
    // It closes, and that it soon opens again is more of the same.
    breaker.sent(1, now_s, &LIMITS);
    assert!(breaker.answered(1));
    breaker.ended(1);
    assert!(open_for_s(&mut breaker, now_s + 1.0, &mut random) > 3.9);
    // But not if it was well for long.
    now_s += 100.0;
    breaker.sent(2, now_s, &LIMITS);
    assert!(breaker.answered(2));
    assert!(open_for_s(&mut breaker, now_s + 50.0, &mut random) < 1.1);
    assert_eq!(breaker.openings(), 8);
}

#[test]
fn a_few_failures_among_many_answers_do_not_open_it() {
    let (mut breaker, mut random) = (Breaker::default(), Random::new(3));
    for ticket in 0..1000 {
        breaker.sent(ticket, 0.0, &LIMITS);
        if ticket % 5 == 0 {
            assert!(!breaker.failed(ticket, 0.0, &LIMITS, &mut random));
        } else {
            breaker.answered(ticket);
        }
    }
    assert_eq!(breaker.state(0.0), BreakerState::Closed);
}

#[test]
fn failures_long_ago_are_forgotten() {
    let (mut breaker, mut random) = (Breaker::default(), Random::new(3));
    for ticket in 0..9 {
        let now_s = 16.0 * f64::from(u32::try_from(ticket).unwrap());
        breaker.sent(ticket, now_s, &LIMITS);
        assert!(!breaker.failed(ticket, now_s, &LIMITS, &mut random));
    }
}

fn pick(router: &Router, now_s: f64) -> Pick {
    let prompt = Prompt {
        tokens: &[1, 2, 3],
        model: "m",
        extra_key: "",
        cache_salt: "",
    };
    router.pick(prompt, &[], now_s).unwrap()
}

fn fail_until_open(router: &Router, replica: &str, now_s: f64) {
    for _ in 0..1000 {
        let pick = pick(router, now_s);
        if pick.replica == replica {
            router.failed(pick.ticket, now_s);
        }
        router.release(pick.ticket);
    }
    let reading = router.breaker(replica, now_s).unwrap();
    assert_eq!(reading.state, BreakerState::Open);
}

#[test]
fn one_request_of_many_tries_a_replica_that_failed_and_its_answer_brings_the_others_back() {
    let router = fleet(PolicyKind::RoundRobin, 2);
    fail_until_open(&router, "r0", 0.0);
    let picked = |now_s| -> Vec<Pick> { (0..50).map(|_| pick(&router, now_s)).collect() };
    assert!(picked(0.1).iter().all(|pick| pick.replica == "r1"));
    let half_open = picked(2.0);
    let probes: Vec<_> = half_open
        .iter()
        .filter(|pick| pick.replica == "r0")
        .collect();
    assert_eq!(probes.len(), 1);
    assert!(router.prefilled(probes[0].ticket));
    let back = picked(2.1);
    assert_eq!(back.iter().filter(|pick| pick.replica == "r0").count(), 25);
    assert_eq!(router.last_resorts(), 0);
}

#[test]
fn a_probe_that_ends_without_a_verdict_makes_room_for_the_next() {
    let router = fleet(PolicyKind::RoundRobin, 2);
    fail_until_open(&router, "r0", 0.0);
    for _ in 0..3 {
        let picks: Vec<_> = (0..9).map(|_| pick(&router, 2.0)).collect();
        let probes = picks.iter().filter(|pick| pick.replica == "r0");
        assert_eq!(probes.count(), 1);
        for pick in picks {
            router.release(pick.ticket);
        }
    }
}

#[test]
fn where_all_have_failed_one_is_tried_rather_than_none() {
    let router = fleet(PolicyKind::Cost, 2);
    fail_until_open(&router, "r0", 0.0);
    fail_until_open(&router, "r1", 0.0);
    let before = router.last_resorts();
    let tried = pick(&router, 0.1);
    assert_eq!(router.last_resorts(), before + 1);
    assert!(router.prefilled(tried.ticket), "its answer closes it");
    let state = router.breaker(&tried.replica, 0.1).unwrap().state;
    assert_eq!(state, BreakerState::Closed);
    // But never one that is dead, or that drains.
    router.set_eligible("r0", false).unwrap();
    router.set_eligible("r1", false).unwrap();
    let prompt = Prompt {
        tokens: &[1],
        model: "m",
        extra_key: "",
        cache_salt: "",
    };
    assert!(router.pick(prompt, &[], 0.2).is_none());
}

#[test]
fn an_overloaded_replica_is_passed_over_until_its_time_is_up_whatever_happens() {
    let router = fleet(PolicyKind::RoundRobin, 2);
    let first = pick(&router, 0.0);
    router.overloaded(first.ticket, 1.5);
    router.release(first.ticket);
    let picked: HashSet<String> = (0..9).map(|_| pick(&router, 1.4).replica).collect();
    assert!(!picked.contains(&first.replica));
    let picked: HashSet<String> = (0..9).map(|_| pick(&router, 1.6).replica).collect();
    assert!(picked.contains(&first.replica));
}

#[test]
fn a_doubted_replica_is_passed_over_until_somebody_has_looked() {
    let router = fleet(PolicyKind::RoundRobin, 2);
    router.doubt("r0").unwrap();
    assert!((0..9).all(|_| pick(&router, 0.0).replica == "r1"));
    router.doubt("r1").unwrap();
    pick(&router, 0.0);
    router.set_eligible("r0", true).unwrap();
    assert!((0..9).all(|_| pick(&router, 0.0).replica == "r0"));
}
