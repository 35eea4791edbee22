//! What the model does, where it can be told by hand, and that mirrors follow it whatever is lost.
#![expect(clippy::cast_precision_loss, reason = "numbers are small")]

use std::ops::ControlFlow;

use super::{Delivery, Dispatcher, Engine, Outcome, Replica, Routers, Trace, TraceError, run};
use crate::chain::HashKey;
use crate::delta::PrefillOrder;
use crate::pick::{PolicyKind, Random, Settings};

const BLOCK: u32 = 100;

/// 1000 tokens a second, no cost but computing, in chunks of 200.
fn engine(order: PrefillOrder) -> Engine {
    Engine {
        order,
        chunk_tokens: 200,
        prefill_tokens_per_s: 1000.0,
        aging: 0.0,
        cache_tokens: 1_000_000,
        ..Engine::default()
    }
}

/// Requests of whole blocks: when, and which.
fn trace(requests: &[(f64, &[u64])]) -> Trace {
    let mut trace = Trace::new(BLOCK);
    for (at_s, hashes) in requests {
        let tokens = hashes.len() as u64 * u64::from(BLOCK);
        trace.push(*at_s, tokens, 10, hashes).unwrap();
    }
    trace
}

/// All to one replica.
struct ToFirst;

impl Dispatcher for ToFirst {
    type Error = std::convert::Infallible;

    fn pick(&mut self, _: f64, _: usize, _: &Trace, _: &[Replica]) -> Result<usize, Self::Error> {
        Ok(0)
    }
}

fn play<D: Dispatcher>(trace: &Trace, replicas: usize, engine: Engine, by: &mut D) -> Outcome
where
    D::Error: std::fmt::Debug,
{
    let played = run(trace, replicas, engine, by, &mut |_| {
        ControlFlow::Continue(())
    });
    played.unwrap().unwrap()
}

fn routers(number: usize, policy: PolicyKind, delivery: Delivery) -> Routers {
    let settings = Settings::new(HashKey::derive(b"secret"), policy);
    Routers::new(number, &settings, 4, BLOCK, delivery).unwrap()
}

/// Conversations of a few tenants, close together.
fn conversations(requests: usize) -> Trace {
    let mut random = Random::new(3);
    let mut trace = Trace::new(BLOCK);
    let mut live: Vec<Vec<u64>> = Vec::new();
    let mut last = 0;
    for number in 0..requests {
        let mut next = || {
            last += 1;
            last
        };
        let place = random.below(live.len() + 1);
        if place == live.len() {
            live.push(vec![next(), next()]);
        }
        live[place].extend([next(), next()]);
        let tokens = live[place].len() as u64 * u64::from(BLOCK);
        trace
            .push(number as f64 * 0.05, tokens, 5, &live[place])
            .unwrap();
        if live.len() > 20 || live[place].len() > 30 {
            live.remove(place);
        }
    }
    trace
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 0.05
}

#[test]
fn a_short_prompt_goes_between_the_chunks_of_a_long_one_or_waits_for_all_of_it() {
    let trace = trace(&[(0.0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), (0.1, &[21])]);
    let outcome = play(&trace, 1, engine(PrefillOrder::Shortest), &mut ToFirst);
    // After the first chunk of 0.2 s come 0.1 s of its own.
    assert!(near(outcome.first_token_s[1], 0.2), "{outcome:?}");
    assert!(near(outcome.first_token_s[0], 1.1), "{outcome:?}");
    let outcome = play(&trace, 1, engine(PrefillOrder::Fcfs), &mut ToFirst);
    assert!(near(outcome.first_token_s[0], 1.0), "{outcome:?}");
    assert!(near(outcome.first_token_s[1], 1.0), "{outcome:?}");
}

#[test]
fn what_is_cached_is_not_computed_until_it_is_pushed_out() {
    let requests: [(f64, &[u64]); 4] = [
        (0.0, &[1, 2, 3]),
        (5.0, &[1, 2, 3, 4]),
        (10.0, &[11, 12, 13]),
        (15.0, &[1, 2, 3, 4]),
    ];
    let trace = trace(&requests);
    let large = play(&trace, 1, engine(PrefillOrder::Shortest), &mut ToFirst);
    assert_eq!(
        (large.cached_tokens, large.prompt_tokens),
        (300 + 399, 1400)
    );
    // Room for five blocks: the third request pushes out 3 and 4, which were used least recently.
    let small = Engine {
        cache_tokens: 500,
        ..engine(PrefillOrder::Shortest)
    };
    let small = play(&trace, 1, small, &mut ToFirst);
    assert_eq!(small.cached_tokens, 300 + 200);
    assert_eq!(small.prefilled_tokens, [1400 - 500]);
}

#[test]
fn mirrors_equal_the_trees_whatever_is_late_or_lost() {
    let trace = conversations(400);
    let small = Engine {
        cache_tokens: 4000,
        ..engine(PrefillOrder::Shortest)
    };
    for (lag_s, loss) in [(0.0, 0.0), (0.05, 0.0), (0.05, 0.1), (1.0, 0.5)] {
        let mut ours = routers(2, PolicyKind::Cost, Delivery { lag_s, loss });
        let outcome = play(&trace, 4, small, &mut ours);
        assert_eq!(outcome.requests.iter().sum::<u64>(), 400);
        assert_eq!(
            loss > 0.0,
            ours.snapshots() > 8,
            "{} snapshots",
            ours.snapshots()
        );
        assert!(ours.in_doubt() == 0 || loss > 0.0, "{}", ours.in_doubt());
        ours.check();
    }
}

#[test]
fn every_policy_answers_every_request_and_equal_seeds_give_equal_outcomes() {
    let trace = conversations(200);
    for policy in PolicyKind::ALL {
        let play = || {
            let delivery = Delivery {
                lag_s: 0.01,
                loss: 0.05,
            };
            let mut ours = routers(3, policy, delivery);
            play(&trace, 4, engine(PrefillOrder::Shortest), &mut ours)
        };
        let outcome = play();
        assert!(
            outcome.first_token_s.iter().all(|&seconds| seconds > 0.0),
            "{policy:?}"
        );
        let cached = outcome.prompt_tokens - outcome.prefilled_tokens.iter().sum::<u64>();
        assert_eq!(outcome.cached_tokens, cached, "{policy:?}");
        assert_eq!(outcome.first_token_s, play().first_token_s, "{policy:?}");
    }
}

#[test]
fn prefixes_are_reused_by_those_policies_that_see_them() {
    let trace = conversations(400);
    let hits = |policy| {
        let mut ours = routers(
            1,
            policy,
            Delivery {
                lag_s: 0.0,
                loss: 0.0,
            },
        );
        let outcome = play(&trace, 4, engine(PrefillOrder::Shortest), &mut ours);
        outcome.cached_tokens as f64 / outcome.prompt_tokens as f64
    };
    let blind = hits(PolicyKind::RoundRobin);
    for policy in [PolicyKind::Cost, PolicyKind::CacheAware] {
        let found = hits(policy);
        assert!(
            found > blind + 0.2,
            "{policy:?} {found}, round robin {blind}"
        );
    }
}

#[test]
fn the_one_who_watches_can_end_it() {
    let trace = conversations(600);
    let mut seen = 0;
    let stopped = run(
        &trace,
        1,
        engine(PrefillOrder::Fcfs),
        &mut ToFirst,
        &mut |requests| {
            seen = requests;
            if requests > 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    assert!(stopped.unwrap().is_none());
    assert!(0 < seen && seen < 600, "{seen}");
}

#[test]
fn a_trace_that_makes_no_sense_is_refused() {
    let mut trace = Trace::new(BLOCK);
    trace.push(1.0, 250, 0, &[1, 2, 3]).unwrap();
    trace.push(1.0, 250, 0, &[1, 2]).unwrap();
    assert_eq!(trace.push(1.0, 0, 0, &[]), Err(TraceError::EmptyPrompt));
    let error = |outcome: Result<(), TraceError>| outcome.unwrap_err().to_string();
    let few = error(trace.push(1.0, 250, 0, &[1]));
    assert!(
        few.contains("1 block hashes for 250 tokens, expected 3"),
        "{few}"
    );
    let early = error(trace.push(0.5, 250, 0, &[1, 2]));
    assert!(early.contains("0.5 s, after one at 1 s"), "{early}");
    let moved = error(trace.push(1.0, 250, 0, &[2, 1]));
    assert!(
        moved.contains("block 2 begins a prompt here and follows 1 before"),
        "{moved}"
    );
    assert_eq!((trace.requests().len(), trace.num_blocks()), (2, 3));
}
