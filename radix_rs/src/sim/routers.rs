//! Our routers: the real index and the real pick, which know what batches tell them.

use std::rc::Rc;

use super::agenda::{Agenda, Event};
use super::dispatcher::Dispatcher;
use super::replica::Replica;
use super::trace::{Trace, chain_hash};
use crate::error::RouterError;
use crate::index::Outcome;
use crate::pick::{Hashed, Random, Router, Settings};

const MODEL: &str = "model";

/// From a doubt to the request for a snapshot: half the jitter, and the replica's work.
const SNAPSHOT_S: f64 = 0.1;

/// How batches come.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Seconds from a replica to a router.
    pub lag_s: f64,
    /// Part of the batches that a router does not get.
    pub loss: f64,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    router: usize,
    ticket: u64,
}

/// One router, and what it knows of each replica.
struct Member {
    router: Router,
    /// By replica: a snapshot is asked for.
    in_doubt: Vec<bool>,
}

/// Routers that share the requests and nothing else.
pub struct Routers {
    members: Vec<Member>,
    names: Vec<String>,
    block_size: u32,
    delivery: Delivery,
    random: Random,
    /// By request.
    tickets: Vec<Ticket>,
    matched_tokens: u64,
    snapshots: u64,
}

impl Routers {
    /// So many routers of one kind, for so many replicas. Which of them a request comes by is chance.
    ///
    /// # Errors
    /// `block_size` is 0.
    pub fn new(
        routers: usize,
        settings: &Settings,
        replicas: usize,
        block_size: u32,
        delivery: Delivery,
    ) -> Result<Self, RouterError> {
        let names: Vec<String> = (0..replicas).map(|replica| replica.to_string()).collect();
        let member = |number: u64| {
            let seed = settings.seed.wrapping_add(number);
            let router = Router::new(&Settings {
                seed,
                ..settings.clone()
            });
            for name in &names {
                router.add_replica(name, MODEL, block_size)?;
                router.set_eligible(name, true)?;
            }
            let in_doubt = vec![false; replicas];
            Ok(Member { router, in_doubt })
        };
        Ok(Self {
            members: (0..routers as u64)
                .map(member)
                .collect::<Result<_, RouterError>>()?,
            names,
            block_size,
            delivery,
            random: Random::new(settings.seed),
            tickets: Vec::new(),
            matched_tokens: 0,
            snapshots: 0,
        })
    }

    /// Tokens of prompts that the routers believed to be cached where they sent them.
    pub fn matched_tokens(&self) -> u64 {
        self.matched_tokens
    }

    /// Snapshots that repaired a mirror.
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// Mirrors that wait for a snapshot.
    #[cfg(test)]
    pub(super) fn in_doubt(&self) -> usize {
        let doubts = self.members.iter().flat_map(|member| &member.in_doubt);
        doubts.filter(|&&is_in_doubt| is_in_doubt).count()
    }

    /// Panics unless every index is in order and no request is left.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for member in &self.members {
            member.router.check().unwrap();
            for name in &self.names {
                assert_eq!(member.router.in_flight(name), Ok(0));
            }
        }
    }

    fn send(&mut self, now_s: f64, replica: usize, batch: &Rc<[u8]>, agenda: &mut Agenda) {
        for router in 0..self.members.len() {
            if self.random.share() >= self.delivery.loss {
                let batch = Rc::clone(batch);
                agenda.enter(
                    now_s + self.delivery.lag_s,
                    Event::BatchComes {
                        router,
                        replica,
                        batch,
                    },
                );
            }
        }
    }

    fn batch_comes(
        &mut self,
        now_s: f64,
        router: usize,
        replica: usize,
        batch: &[u8],
        agenda: &mut Agenda,
    ) -> Result<(), RouterError> {
        let member = &mut self.members[router];
        if member.in_doubt[replica] {
            // The snapshot that is on its way is of a later time than this batch.
            return Ok(());
        }
        let applied = member.router.apply(&self.names[replica], batch)?;
        if !matches!(applied.outcome, Outcome::Applied | Outcome::Stale) {
            member.in_doubt[replica] = true;
            let asked_s = now_s + SNAPSHOT_S + self.delivery.lag_s;
            agenda.enter(asked_s, Event::SnapshotAsked { router, replica });
        }
        Ok(())
    }
}

impl Dispatcher for Routers {
    type Error = RouterError;

    fn pick(
        &mut self,
        now_s: f64,
        request: usize,
        trace: &Trace,
        _replicas: &[Replica],
    ) -> Result<usize, RouterError> {
        let prompt = &trace.requests()[request];
        let chain: Vec<u64> = trace
            .blocks(prompt)
            .iter()
            .map(|&block| chain_hash(block))
            .collect();
        let router = self.random.below(self.members.len());
        let hashed = Hashed {
            model: MODEL,
            chain: &chain,
            block_size: self.block_size,
            tokens: prompt.prompt_tokens,
        };
        let picked = self.members[router]
            .router
            .pick_hashed(&hashed, &[], now_s, &mut || ())
            .ok_or_else(|| RouterError::UnknownReplica(MODEL.to_owned()))?;
        debug_assert_eq!(self.tickets.len(), request, "requests come in order");
        self.tickets.push(Ticket {
            router,
            ticket: picked.ticket,
        });
        self.matched_tokens += picked.matched.min(prompt.prompt_tokens - 1);
        let replica = self.names.iter().position(|name| *name == picked.replica);
        replica.ok_or(RouterError::UnknownReplica(picked.replica))
    }

    fn first_token(&mut self, request: usize) -> Result<(), RouterError> {
        let Ticket { router, ticket } = self.tickets[request];
        self.members[router].router.prefilled(ticket);
        Ok(())
    }

    fn ended(&mut self, request: usize) -> Result<(), RouterError> {
        let Ticket { router, ticket } = self.tickets[request];
        self.members[router].router.release(ticket);
        Ok(())
    }

    fn listens(&self) -> bool {
        true
    }

    fn published(&mut self, now_s: f64, replica: usize, batch: &Rc<[u8]>, agenda: &mut Agenda) {
        self.send(now_s, replica, batch, agenda);
    }

    fn happens(
        &mut self,
        now_s: f64,
        event: Event,
        trace: &Trace,
        replicas: &mut [Replica],
        agenda: &mut Agenda,
    ) -> Result<(), RouterError> {
        match event {
            Event::BatchComes {
                router,
                replica,
                batch,
            } => self.batch_comes(now_s, router, replica, &batch, agenda)?,
            Event::SnapshotAsked { router, replica } => {
                let (unsent, batch) = replicas[replica].snapshot(trace);
                if let Some(unsent) = unsent {
                    self.send(now_s, replica, &unsent.into(), agenda);
                }
                let batch = batch.into();
                agenda.enter(
                    now_s + self.delivery.lag_s,
                    Event::SnapshotComes {
                        router,
                        replica,
                        batch,
                    },
                );
            }
            Event::SnapshotComes {
                router,
                replica,
                batch,
            } => {
                let member = &mut self.members[router];
                member.router.clear(&self.names[replica])?;
                member
                    .router
                    .apply_snapshot(&self.names[replica], &batch, true)?;
                member.in_doubt[replica] = false;
                self.snapshots += 1;
            }
            Event::ChunkEnds { .. } | Event::AnswerEnds { .. } | Event::Publishes { .. } => {}
        }
        Ok(())
    }
}
