//! A pick against the slow way: all figures of every replica, and the policy applied to all that may be picked.

use proptest::prelude::*;

use super::core::Hashed;
use super::policy::Policy;
use super::random::Random;
use super::test_fleet::{BLOCK, SEED, apply, batch, chain, fleet, prompt, stored, tokens, waiting};
use super::{Candidate, PolicyKind, Reason, Rules};
use crate::delta::{Event, Expected, Load, PrefillOrder};

#[derive(Clone, Debug)]
struct State {
    /// Blocks of the first text that are cached, and those that are announced.
    held: usize,
    announced: usize,
    waits: Vec<u64>,
    order: PrefillOrder,
    running: u32,
    draining: bool,
    doubted: bool,
}

fn state() -> impl Strategy<Value = State> {
    let order = prop::sample::select(vec![PrefillOrder::Shortest, PrefillOrder::Fcfs]);
    let waits = prop::collection::vec(1..60_000u64, 0..4);
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.3));
    (0..10usize, 0..30usize, waits, order, 0..40u32, flags).prop_map(
        |(held, announced, waits, order, running, (draining, doubted))| State {
            held,
            announced,
            waits,
            order,
            running,
            draining,
            doubted,
        },
    )
}

#[derive(Clone, Debug)]
struct Ask {
    text: u32,
    len: u32,
    exclude: usize,
    is_released: bool,
}

fn ask() -> impl Strategy<Value = Ask> {
    (0..3u32, 1..200u32, 0..80usize, any::<bool>()).prop_map(|(text, len, exclude, is_released)| {
        Ask {
            text,
            len,
            exclude,
            is_released,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_pick_is_what_a_look_at_every_replica_leads_to(
        kind in prop_oneof![
            3 => Just(PolicyKind::Cost), 1 => prop::sample::select(PolicyKind::ALL.to_vec()),
        ],
        states in prop_oneof![
            3 => prop::collection::vec(state(), 1..8), 1 => prop::collection::vec(state(), 60..80),
        ],
        asks in prop::collection::vec(ask(), 1..12),
    ) {
        let router = fleet(kind, states.len());
        let names: Vec<_> = (0..states.len()).map(|number| format!("r{number}")).collect();
        let all = chain(&tokens(0, 200));
        for (name, state) in names.iter().zip(&states) {
            let State { held, running, draining, order, .. } = *state;
            let last = held + state.announced;
            let coming = Event::Expected(Expected {
                id: 1,
                start: u32::try_from(held).unwrap(),
                hashes: all[held..last].to_vec(),
            });
            let load = Load {
                order: order as i32,
                running,
                draining,
                chunk_tokens: 512,
                ..waiting(&state.waits)
            };
            let held = &all[..held];
            apply(&router, name, &batch(1, vec![stored(held), coming], held, load));
            if state.doubted {
                router.doubt(name).unwrap();
            }
        }
        let (mut policy, mut random) = (Policy::new(&Rules::new(kind)), Random::new(SEED));
        for Ask { text, len, exclude, is_released } in asks {
            let text = tokens(text * 1000, len);
            let hashed = Hashed {
                model: "m",
                chain: &chain(&text),
                block_size: BLOCK,
                tokens: u64::from(len),
            };
            let mut may_go: Vec<Candidate> = router
                .explain(prompt(&text), 0.0)
                .into_iter()
                .map(|explained| explained.candidate)
                .filter(|each| !states[each.id as usize].draining && each.id as usize != exclude)
                .collect();
            if may_go.iter().any(|each| each.is_sound) {
                may_go.retain(|each| each.is_sound);
            }
            may_go.sort_by_key(|each| each.id);
            let exclude = [format!("r{exclude}")];
            let picked = router.pick(prompt(&text), &exclude, 0.0);
            let Some(place) = policy.choose(&hashed, &may_go, &mut random) else {
                prop_assert!(picked.is_none());
                continue;
            };
            let (chosen, picked) = (may_go[place], picked.unwrap());
            policy.picked(chosen.id);
            let longest = may_go.iter().map(|each| each.expected).max();
            let is_longest = Some(chosen.expected) == longest;
            prop_assert_eq!(&picked.replica, &names[chosen.id as usize]);
            prop_assert_eq!(picked.matched, chosen.matched);
            prop_assert_eq!(Some(picked.available), may_go.iter().map(|each| each.matched).max());
            prop_assert_eq!(picked.reason == Reason::Cold, policy.sees_prefixes() && longest == Some(0));
            prop_assert_eq!(picked.reason == Reason::Load, policy.sees_prefixes() && !is_longest);
            if is_released {
                router.release(picked.ticket);
            }
        }
    }
}
