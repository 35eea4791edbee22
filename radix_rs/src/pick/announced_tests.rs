//! Prompts that replicas announce: what routers make of what other routers sent.

#![expect(
    clippy::float_cmp,
    reason = "terms are sums of small whole numbers, which floats hold exactly"
)]

use prost::Message;

use super::test_fleet::{
    apply, batch, chain, fleet, idle, pick, prompt, stored, tokens as text_of, waiting,
};
use super::{PolicyKind, Reason, Router};
use crate::delta::{Cleared, Dropped, Event, Expected, Removed};
use crate::index::Outcome;

const TOKENS: u64 = 40;

fn text() -> Vec<u32> {
    text_of(0, 40)
}

fn announce(id: u64, start: usize) -> Event {
    Event::Expected(Expected {
        id,
        start: u32::try_from(start).unwrap(),
        hashes: chain(&text())[start..].to_vec(),
    })
}

fn dropped(id: u64) -> Event {
    Event::Dropped(Dropped { id })
}

/// Tokens of the text that r0 is expected to hold.
fn expected_at(router: &Router, now_s: f64) -> u64 {
    router.explain(prompt(&text()), now_s)[0].candidate.expected
}

fn expected(router: &Router) -> u64 {
    expected_at(router, 0.0)
}

/// Tokens that a prompt with nothing in common would wait for on r0.
fn ahead(router: &Router) -> f64 {
    let other = text_of(5000, 90);
    router.explain(prompt(&other), 0.0)[0].candidate.terms.ahead
}

/// A router to whose only replica the text was announced as 1, by the batch with seq 1.
fn told() -> Router {
    let router = fleet(PolicyKind::Cost, 1);
    let first = batch(1, vec![announce(1, 0)], &[], waiting(&[TOKENS]));
    assert_eq!(apply(&router, "r0", &first), Outcome::Applied);
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 40.0));
    router
}

#[test]
fn a_burst_of_one_new_prefix_stays_together_though_it_comes_by_two_routers() {
    let (ours, theirs) = (fleet(PolicyKind::Cost, 8), fleet(PolicyKind::Cost, 8));
    let system = text_of(0, 4000);
    let first = [&system[..], &text_of(9000, 8)].concat();
    let picked = pick(&theirs, &first, 0.0);
    let event = Event::Expected(Expected {
        id: 1,
        start: 0,
        hashes: chain(&first),
    });
    let batch = batch(1, vec![event], &[], waiting(&[first.len() as u64]));
    apply(&ours, &picked.replica, &batch);
    for user in 0..10 {
        let text = [&system[..], &text_of(10_000 + user * 100, 8)].concat();
        let later = pick(&ours, &text, 0.0);
        assert_eq!(later.replica, picked.replica);
        assert_eq!((later.reason, later.matched), (Reason::Prefix, 0));
    }
}

#[test]
fn a_prompt_sent_and_announced_counts_once() {
    let router = fleet(PolicyKind::Cost, 1);
    let picked = pick(&router, &text(), 0.0);
    apply(
        &router,
        "r0",
        &batch(1, vec![announce(1, 0)], &[], waiting(&[TOKENS])),
    );
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 40.0));
    // The same one by another router is another one.
    apply(
        &router,
        "r0",
        &batch(2, vec![announce(2, 0)], &[], waiting(&[TOKENS, TOKENS])),
    );
    assert_eq!(ahead(&router), 80.0);
    router.release(picked.ticket);
    apply(
        &router,
        "r0",
        &batch(3, vec![dropped(1)], &[], waiting(&[TOKENS])),
    );
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 40.0));
    apply(&router, "r0", &batch(4, vec![dropped(2)], &[], idle()));
    assert_eq!((expected(&router), ahead(&router)), (0, 0.0));
}

#[test]
fn a_prompt_of_ours_that_the_replica_drops_is_no_longer_expected() {
    let router = fleet(PolicyKind::Cost, 1);
    let picked = pick(&router, &text(), 0.0);
    apply(
        &router,
        "r0",
        &batch(1, vec![announce(7, 0), dropped(7)], &[], idle()),
    );
    assert_eq!((expected(&router), ahead(&router)), (0, 0.0));
    assert_eq!(router.in_flight("r0").unwrap(), 1);
    router.release(picked.ticket);
    assert_eq!(router.in_flight("r0").unwrap(), 0);
}

#[test]
fn a_prompt_of_ours_is_expected_from_its_first_token_until_its_blocks_are_told() {
    let held = chain(&text());
    let router = fleet(PolicyKind::Cost, 1);
    let picked = pick(&router, &text(), 0.0);
    let told = batch(1, vec![announce(1, 0)], &[], waiting(&[TOKENS]));
    apply(&router, "r0", &told);
    router.prefilled(picked.ticket);
    router.release(picked.ticket);
    assert_eq!(expected_at(&router, 30.0), TOKENS);
    assert_eq!(router.in_flight("r0").unwrap(), 0);
    apply(&router, "r0", &batch(2, vec![stored(&held)], &held, idle()));
    assert_eq!(ahead(&router), 0.0);
    router.clear("r0").unwrap();
    assert_eq!(expected_at(&router, 30.0), 0);
}

#[test]
fn an_announcement_ends_where_its_last_block_is_stored() {
    let held = chain(&text());
    let router = told();
    // Half of it stored: half of the work is left. `Cleared` takes what is stored, not what comes.
    let half = batch(2, vec![stored(&held[..5])], &held[..5], waiting(&[20]));
    apply(&router, "r0", &half);
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 20.0));
    let cleared = batch(3, vec![Event::Cleared(Cleared {})], &[], waiting(&[20]));
    apply(&router, "r0", &cleared);
    assert_eq!(expected(&router), TOKENS);
    // Stored and evicted in one batch: it was computed all the same.
    let gone = Event::Removed(Removed::of(&held[..10]).unwrap());
    let both = batch(4, vec![stored(&held), gone], &[], idle());
    assert_eq!(apply(&router, "r0", &both), Outcome::Applied);
    assert_eq!((expected(&router), ahead(&router)), (0, 0.0));
}

#[test]
fn a_prompt_that_is_stored_ends_though_its_blocks_are_forgotten_at_once() {
    let held = chain(&text());
    let router = told();
    router.set_index_max_bytes(0);
    let all = batch(2, vec![stored(&held)], &held, idle());
    assert_eq!(apply(&router, "r0", &all), Outcome::Applied);
    assert_eq!((expected(&router), ahead(&router)), (0, 0.0));
}

#[test]
fn an_announcement_of_what_is_held_says_nothing() {
    let held = chain(&text());
    let router = fleet(PolicyKind::Cost, 1);
    let late = batch(1, vec![stored(&held), announce(1, 4)], &held, idle());
    apply(&router, "r0", &late);
    let gone = Event::Removed(Removed::of(&held[..10]).unwrap());
    apply(&router, "r0", &batch(2, vec![gone], &[], idle()));
    assert_eq!(expected(&router), 0);
}

#[test]
fn an_announcement_begins_after_what_was_cached() {
    let held = chain(&text());
    let router = fleet(PolicyKind::Cost, 1);
    let rest = batch(
        1,
        vec![stored(&held[..3]), announce(1, 3)],
        &held[..3],
        waiting(&[28]),
    );
    apply(&router, "r0", &rest);
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 28.0));
    // A prompt that parts from it before that has only the mirror to expect from.
    let other = [&text()[..12], &text_of(7000, 20)].concat();
    let candidate = router.explain(prompt(&other), 0.0)[0].candidate;
    assert_eq!((candidate.matched, candidate.expected), (12, 12));
}

#[test]
fn an_announcement_goes_with_the_mirror_and_comes_back_with_the_snapshot() {
    let router = told();
    router.clear("r0").unwrap();
    assert_eq!(expected(&router), 0);
    let snapshot = batch(9, vec![announce(1, 0)], &[], waiting(&[TOKENS]));
    let snapshot = snapshot.encode_to_vec();
    router.apply_snapshot("r0", &snapshot, true).unwrap();
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 40.0));
    router.remove_replica("r0");
    router.add_replica("r0", "m", 4).unwrap();
    assert_eq!(expected(&router), 0);
}

#[test]
fn a_prompt_of_ours_is_announced_anew_by_a_snapshot() {
    let router = fleet(PolicyKind::Cost, 1);
    pick(&router, &text(), 0.0);
    let announced = || batch(1, vec![announce(1, 0)], &[], waiting(&[TOKENS]));
    apply(&router, "r0", &announced());
    router.clear("r0").unwrap();
    assert_eq!(expected(&router), TOKENS);
    let snapshot = announced().encode_to_vec();
    router.apply_snapshot("r0", &snapshot, true).unwrap();
    assert_eq!((expected(&router), ahead(&router)), (TOKENS, 40.0));
}

#[test]
fn an_announcement_whose_end_nobody_tells_expires() {
    let router = told();
    // The clock of an announcement starts with the first pick after it.
    assert_eq!(expected_at(&router, 59.9), TOKENS);
    assert_eq!(expected_at(&router, 60.0), 0);
}

#[test]
fn a_known_id_and_an_unknown_one_change_nothing() {
    let router = told();
    let again = batch(
        2,
        vec![announce(1, 0), announce(1, 3), dropped(99)],
        &[],
        waiting(&[TOKENS]),
    );
    apply(&router, "r0", &again);
    assert_eq!(ahead(&router), 40.0);
    apply(&router, "r0", &batch(3, vec![dropped(1)], &[], idle()));
    assert_eq!((expected(&router), ahead(&router)), (0, 0.0));
}

#[test]
fn a_replica_cannot_announce_without_bound() {
    let router = fleet(PolicyKind::Cost, 1);
    let event = |id, hashes| {
        Event::Expected(Expected {
            id,
            start: 0,
            hashes,
        })
    };
    let many = (1..2000).map(|id| event(id, vec![1 << 40 | id])).collect();
    apply(&router, "r0", &batch(1, many, &[], idle()));
    assert_eq!(ahead(&router), 4.0 * 1024.0);
    let dropped = (1..2000).map(dropped).collect();
    apply(&router, "r0", &batch(2, dropped, &[], idle()));
    let long = vec![
        event(5000, (1..=40_000).collect()),
        event(5001, (100_001..=140_000).collect()),
    ];
    apply(&router, "r0", &batch(3, long, &[], idle()));
    let other = text_of(0, 1_000_000);
    let terms = router.explain(prompt(&other), 0.0)[0].candidate.terms;
    assert_eq!(terms.ahead, 160_000.0);
}
