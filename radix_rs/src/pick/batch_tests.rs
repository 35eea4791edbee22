//! What becomes of batches and snapshots, and of the load they bring, whatever comes in which order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use prost::Message;

use super::test_fleet::{apply, batch, chain, fleet, idle, stored, tokens, waiting};
use super::{PolicyKind, Router};
use crate::chain::HASH_VERSION;
use crate::delta::{Cleared, DeltaBatch, DeltaEvent, Event, Load, LoadClass, Removed, Stored};
use crate::error::RouterError;
use crate::index::{Matches, Outcome};

/// r0's last load, in one number.
fn waits(router: &Router) -> u32 {
    router.load("r0").unwrap().waiting
}

#[test]
fn the_load_of_a_batch_from_far_ahead_goes_with_the_next_one() {
    let router = fleet(PolicyKind::Cost, 1);
    let draining = Load {
        draining: true,
        ..idle()
    };
    let forged = batch(u64::MAX, vec![], &[], draining);
    assert_eq!(apply(&router, "r0", &forged), Outcome::Gap);
    assert_eq!(
        apply(&router, "r0", &batch(1, vec![], &[], waiting(&[9]))),
        Outcome::Applied
    );
    assert_eq!(waits(&router), 1);
    assert!(!router.load("r0").unwrap().draining);

    assert_eq!(apply(&router, "r0", &forged), Outcome::Gap);
    router.clear("r0").unwrap();
    let snapshot = batch(1, vec![], &[], waiting(&[9, 9]));
    router
        .apply_snapshot("r0", &snapshot.encode_to_vec(), true)
        .unwrap();
    assert_eq!(waits(&router), 2);
    assert!(!router.load("r0").unwrap().draining);
}

#[test]
fn another_lifes_load_counts_only_while_nothing_better_is_known() {
    let router = fleet(PolicyKind::Cost, 1);
    let mut other = batch(1, vec![], &[], waiting(&[9]));
    other.epoch = 2;
    assert_eq!(apply(&router, "r0", &other), Outcome::Epoch);
    assert_eq!(waits(&router), 0);
    router.clear("r0").unwrap();
    assert_eq!(apply(&router, "r0", &other), Outcome::Epoch);
    assert_eq!(waits(&router), 1);
}

#[test]
fn a_batch_is_applied_once_and_in_order() {
    let router = fleet(PolicyKind::Cost, 1);
    let held = chain(&tokens(0, 40));
    let first = batch(1, vec![stored(&held[..5])], &held[..5], waiting(&[100]));
    assert_eq!(apply(&router, "r0", &first), Outcome::Applied);
    assert_eq!(
        apply(&router, "r0", &batch(1, vec![], &[], idle())),
        Outcome::Stale
    );
    assert_eq!(router.load("r0").unwrap().waiting, 1);
    // A gap changes the load only.
    let later = batch(3, vec![Event::Cleared(Cleared {})], &[], idle());
    assert_eq!(apply(&router, "r0", &later), Outcome::Gap);
    assert_eq!(router.load("r0").unwrap().waiting, 0);
    assert_eq!(router.mirror("r0").unwrap().seq, 1);
    let other = DeltaBatch {
        epoch: 2,
        ..later.clone()
    };
    assert_eq!(apply(&router, "r0", &other), Outcome::Epoch);
    assert_eq!(router.mirror("r0").unwrap().count, 5);
    // What the publisher says it holds is not what the mirror holds.
    let wrong = batch(2, vec![stored(&held)], &held[..9], idle());
    assert_eq!(apply(&router, "r0", &wrong), Outcome::Mismatch);
    assert_eq!(router.mirror("r0").unwrap().count, 10);
    assert_eq!(
        apply(&router, "r0", &batch(3, vec![], &held, idle())),
        Outcome::Applied
    );
}

#[test]
fn a_snapshot_comes_in_chunks_into_a_cleared_mirror() {
    let router = fleet(PolicyKind::Cost, 1);
    let held = chain(&tokens(0, 40));
    let chunk = |from: usize, to: usize, count: &[u64]| {
        let run = Event::Stored(Stored {
            parent: if from == 0 { 0 } else { held[from - 1] },
            hashes: held[from..to].to_vec(),
        });
        batch(9, vec![run], count, idle()).encode_to_vec()
    };
    assert!(matches!(
        router.apply_snapshot("r0", &chunk(0, 5, &[]), false),
        Err(RouterError::NotCleared {
            epoch: 1,
            seq: 0,
            ..
        })
    ));
    router.clear("r0").unwrap();
    router
        .apply_snapshot("r0", &chunk(0, 5, &[]), false)
        .unwrap();
    let mut other = batch(10, vec![], &[], idle());
    assert!(matches!(
        router.apply_snapshot("r0", &other.encode_to_vec(), true),
        Err(RouterError::SnapshotChanged {
            expected: (1, 9),
            found: (1, 10),
            ..
        })
    ));
    // Deltas wait until it is complete.
    assert_eq!(apply(&router, "r0", &other), Outcome::Epoch);
    let last = router
        .apply_snapshot("r0", &chunk(5, 10, &held), true)
        .unwrap();
    assert_eq!((last.outcome, last.stored), (Outcome::Applied, 5));
    (other.count, other.digest) = {
        let mirror = router.mirror("r0").unwrap();
        (mirror.count, mirror.digest)
    };
    assert_eq!(apply(&router, "r0", &other), Outcome::Applied);

    router.clear("r0").unwrap();
    let lossy = router
        .apply_snapshot("r0", &chunk(0, 5, &held), true)
        .unwrap();
    assert_eq!(lossy.outcome, Outcome::Mismatch);
}

#[test]
fn a_wrong_batch_is_refused_and_changes_nothing() {
    let router = fleet(PolicyKind::Cost, 1);
    let good = batch(1, vec![stored(&[1])], &[1], waiting(&[5]));
    let wrong = [
        DeltaBatch {
            epoch: 0,
            ..good.clone()
        },
        DeltaBatch {
            seq: 0,
            ..good.clone()
        },
        DeltaBatch {
            block_size: 16,
            ..good.clone()
        },
        DeltaBatch {
            hash_version: HASH_VERSION + 1,
            ..good.clone()
        },
        DeltaBatch {
            events: vec![DeltaEvent {
                event: Some(stored(&[1, 0])),
            }],
            ..good.clone()
        },
        DeltaBatch {
            load: Some(Load {
                classes: vec![LoadClass {
                    log2: 32,
                    ..LoadClass::default()
                }],
                ..idle()
            }),
            ..good.clone()
        },
    ];
    for batch in wrong {
        let error = router.apply("r0", &batch.encode_to_vec()).unwrap_err();
        assert!(error.to_string().contains("r0"), "{error}");
        let mirror = router.mirror("r0").unwrap();
        assert_eq!((mirror.seq, mirror.count), (0, 0));
        assert_eq!(router.load("r0").unwrap().waiting, 0);
    }
    assert_eq!(apply(&router, "r0", &good), Outcome::Applied);
}

#[test]
fn a_match_beside_batches_sees_what_is_between_two_of_them_and_other_replicas_as_they_are() {
    let router = fleet(PolicyKind::Cost, 2);
    let held = chain(&tokens(0, 4000));
    let (trunk, rest) = held.split_at(held.len() / 2);
    apply(&router, "r1", &batch(1, vec![stored(&held)], &held, idle()));
    apply(&router, "r0", &batch(1, vec![stored(trunk)], trunk, idle()));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..200 {
                let back = Event::Stored(Stored {
                    parent: trunk[trunk.len() - 1],
                    hashes: rest.to_vec(),
                });
                let gone = Event::Removed(Removed::of(rest).unwrap());
                for (seq, event, held) in
                    [(2 * round, back, &held[..]), (2 * round + 1, gone, trunk)]
                {
                    let batch = batch(seq, vec![event], held, idle());
                    assert_eq!(apply(&router, "r0", &batch), Outcome::Applied);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut matches = Matches::default();
        while !done.load(Ordering::Relaxed) {
            assert!(router.walk("m", &held, &mut matches));
            assert!((trunk.len()..=held.len()).contains(&matches.of(0)));
            assert_eq!(matches.of(1), held.len());
        }
    });
    router.check().unwrap();
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), last in any::<bool>()) {
        let router = fleet(PolicyKind::Cost, 1);
        let _ = router.apply("r0", &bytes);
        router.clear("r0").unwrap();
        let _ = router.apply_snapshot("r0", &bytes, last);
        router.check().unwrap();
    }
}
