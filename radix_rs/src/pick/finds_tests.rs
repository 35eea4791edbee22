//! What a prompt finds, against a look at every replica's blocks and at every prompt in flight there.

use proptest::prelude::*;

use super::finds::Finds;
use super::in_flight::InFlight;
use super::pending::{Pending, Sent};
use super::random::mix;
use crate::chain::NO_PARENT;
use crate::delta::Expected;
use crate::index::{Index, Matches, ReplicaId, ReplicaSet};

const REPLICAS: u32 = 3;

/// `len`, `start` and `which` are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Send {
        at: ReplicaId,
        chain: Vec<u64>,
    },
    Expect {
        at: ReplicaId,
        chain: Vec<u64>,
        start: usize,
    },
    Prefilled {
        which: u64,
    },
    Release {
        which: u64,
    },
    Dropped {
        at: ReplicaId,
        which: u64,
    },
    Forget {
        at: ReplicaId,
    },
    Leave {
        at: ReplicaId,
    },
    Store {
        at: ReplicaId,
        chain: Vec<u64>,
        len: usize,
    },
    Stored {
        at: ReplicaId,
        chain: Vec<u64>,
    },
    Clear {
        at: ReplicaId,
    },
    Wait {
        seconds: u8,
    },
}

fn chain() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop::sample::select(vec![1, 1, 1, 1, 2]), 0..10).prop_map(|blocks| {
        let hashes = blocks.iter().scan(0, |before, block| {
            *before = mix(*before ^ block);
            Some(*before)
        });
        hashes.collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let (at, which) = (0..REPLICAS, any::<u64>());
    prop_oneof![
        8 => (at.clone(), chain()).prop_map(|(at, chain)| Step::Send { at, chain }),
        8 => (at.clone(), chain(), any::<usize>())
            .prop_map(|(at, chain, start)| Step::Expect { at, chain, start }),
        2 => which.prop_map(|which| Step::Prefilled { which }),
        2 => which.prop_map(|which| Step::Release { which }),
        2 => (at.clone(), which).prop_map(|(at, which)| Step::Dropped { at, which }),
        1 => at.clone().prop_map(|at| Step::Forget { at }),
        1 => at.clone().prop_map(|at| Step::Leave { at }),
        3 => (at.clone(), chain(), any::<usize>())
            .prop_map(|(at, chain, len)| Step::Store { at, chain, len }),
        1 => (at.clone(), chain()).prop_map(|(at, chain)| Step::Stored { at, chain }),
        1 => at.prop_map(|at| Step::Clear { at }),
        1 => (1..70u8).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

#[derive(Default)]
struct World {
    in_flight: InFlight,
    index: Index,
    /// Of the last ticket and of the last announcement.
    ticket: u64,
    id: u64,
    now_s: f64,
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Send { at, chain } => {
                let sent = Sent {
                    chain: &chain,
                    stored: 0,
                    block_tokens: 1,
                    prompt_tokens: chain.len() as u64,
                    uncached_tokens: chain.len() as u64,
                };
                self.ticket = self.in_flight.send(at, &sent, self.now_s);
            }
            Step::Expect { at, chain, start } => {
                self.id += 1;
                let start = start % (chain.len() + 1);
                let expected = Expected {
                    id: self.id,
                    start: u32::try_from(start).unwrap(),
                    hashes: chain[start..].to_vec(),
                };
                self.in_flight.expect(at, &expected, 1, &self.index);
            }
            Step::Prefilled { which } => self.in_flight.prefilled(which % (self.ticket + 1)),
            Step::Release { which } => self.in_flight.release(which % (self.ticket + 1)),
            Step::Dropped { at, which } => self.in_flight.dropped(at, which % (self.id + 1)),
            Step::Forget { at } => self.in_flight.forget_announced(at),
            Step::Leave { at } => self.in_flight.remove_replica(at),
            Step::Store { at, chain, len } => {
                let len = len % (chain.len() + 1);
                self.index.store(at, NO_PARENT, &chain[..len]);
                self.in_flight.blocks_stored(at, &self.index);
            }
            Step::Stored { at, chain } => self.in_flight.run_stored(at, &chain),
            Step::Clear { at } => {
                self.index.clear(at);
            }
            Step::Wait { seconds } => self.now_s += f64::from(seconds),
        }
        self.in_flight.expire(self.now_s);
    }

    fn slowly(&self, at: ReplicaId, chain: &[u64]) -> (usize, usize) {
        let held = |hash: &&u64| self.index.holds(at, **hash);
        let matched = chain.iter().take_while(held).count();
        let shared = |prompt: &Pending| {
            let rest = chain.get(prompt.start..).unwrap_or(&[]);
            let both = rest.iter().zip(&*prompt.chain);
            let same = both.take_while(|(a, b)| a == b).count();
            if same == 0 { 0 } else { prompt.start + same }
        };
        let shared = self.in_flight.pending(at).map(shared);
        (matched, shared.fold(matched, usize::max))
    }
}

proptest! {
    #[test]
    fn a_prompt_finds_what_every_replica_holds_and_expects(
        steps in prop::collection::vec(step(), 1..60), asked in chain(),
    ) {
        let mut world = World::default();
        let mut all = ReplicaSet::default();
        (0..REPLICAS).for_each(|_| all.insert(world.index.add_replica()));
        let mut matches = Matches::default();
        for step in steps {
            world.take(step);
            world.index.walk(&asked, &all, &mut matches);
            let finds = Finds::new(&matches, world.in_flight.along(&asked));
            let found: Vec<_> = finds.most_first(&all).collect();
            prop_assert!(found.is_sorted_by_key(|find| std::cmp::Reverse(find.expected)));
            prop_assert_eq!(found.len(), REPLICAS as usize);
            for find in found {
                let slowly = world.slowly(find.replica, &asked);
                prop_assert_eq!((find.matched, find.expected), slowly);
                prop_assert_eq!(matches.of(find.replica), find.matched);
            }
            let longest = finds.longest_first().next().map(|(blocks, _)| blocks);
            prop_assert_eq!(longest, (0..REPLICAS).map(|at| world.slowly(at, &asked).0).max());
        }
    }
}
