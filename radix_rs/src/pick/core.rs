//! The parts joined, and what happens to them; without I/O.

use super::answers::{BreakerReading, MirrorStats, Pick};
use super::breaker::BreakerLimits;
use super::candidate::Candidate;
use super::cost::Weights;
use super::fleet::{Fleet, Replica};
use super::in_flight::InFlight;
use super::pending::Sent;
use super::policy::{Policy, Rules};
use super::random::Random;
use crate::delta::Load;
use crate::error::RouterError;
use crate::index::{Index, Matches, Position, ReplicaId};

/// A prompt as the core needs it.
pub(crate) struct Hashed<'a> {
    pub model: &'a str,
    pub chain: &'a [u64],
    /// That of the model when `chain` was made.
    pub block_size: u32,
    pub tokens: u64,
}

impl Hashed<'_> {
    pub fn tokens_of(&self, blocks: usize) -> u64 {
        blocks as u64 * u64::from(self.block_size)
    }

    /// Those that are to be computed after as many leading ones; the last is never spared.
    pub fn tokens_beyond(&self, expected: u64) -> u64 {
        self.tokens.saturating_sub(expected).max(1)
    }
}

/// All a router knows. One writer at a time. Apart from the words of its lock: threads that wait write there.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(super) fleet: Fleet,
    pub(super) index: Index,
    pub(super) in_flight: InFlight,
    pub(super) policy: Policy,
    pub(super) weights: Weights,
    pub(super) random: Random,
    breaker: BreakerLimits,
    last_resorts: u64,
    /// Kept to spare the allocations.
    pub(super) matches: Matches,
    pub(super) candidates: Vec<Candidate>,
}

impl Core {
    pub fn new(rules: &Rules, seed: u64) -> Self {
        Self {
            fleet: Fleet::default(),
            index: Index::default(),
            in_flight: InFlight::default(),
            policy: Policy::new(rules),
            weights: rules.weights,
            breaker: rules.breaker,
            random: Random::new(seed),
            last_resorts: 0,
            matches: Matches::default(),
            candidates: Vec::new(),
        }
    }

    pub fn add_replica(
        &mut self,
        name: &str,
        model: &str,
        block_size: u32,
    ) -> Result<(), RouterError> {
        self.fleet.check_new(name, model, block_size)?;
        let id = self.index.add_replica();
        self.fleet.add(id, name, model, block_size);
        Ok(())
    }

    /// Takes a replica out of the fleet, if it is there; its blocks are still to be cleared and its number freed.
    pub fn remove_replica(&mut self, name: &str) -> Option<ReplicaId> {
        let id = self.fleet.remove(name)?;
        self.in_flight.remove_replica(id);
        Some(id)
    }

    pub fn set_eligible(&mut self, name: &str, eligible: bool) -> Result<(), RouterError> {
        let (_, replica) = self.fleet.find_mut(name)?;
        replica.eligible = eligible;
        replica.doubted = false;
        Ok(())
    }

    pub fn doubt(&mut self, name: &str) -> Result<(), RouterError> {
        self.fleet.find_mut(name)?.1.doubted = true;
        Ok(())
    }

    /// From now on these rules hold.
    pub fn follow(&mut self, rules: &Rules) {
        self.policy = Policy::new(rules);
        self.weights = rules.weights;
        self.breaker = rules.breaker;
    }

    pub fn breaker(&self, name: &str, now_s: f64) -> Result<BreakerReading, RouterError> {
        let breaker = &self.find(name)?.1.breaker;
        Ok(BreakerReading {
            state: breaker.state(now_s),
            openings: breaker.openings(),
        })
    }

    /// How often a replica was picked although its answers spoke against it, as they did against all.
    pub fn last_resorts(&self) -> u64 {
        self.last_resorts
    }

    /// The answer begins; true if that closes the breaker.
    pub fn prefilled(&mut self, ticket: u64) -> bool {
        self.in_flight.prefilled(ticket);
        let replica = self.replica_of(ticket);
        replica.is_some_and(|replica| replica.breaker.answered(ticket))
    }

    /// The request failed; true if that opens the breaker.
    pub fn failed(&mut self, ticket: u64, now_s: f64) -> bool {
        let (limits, mut random) = (self.breaker, self.random.clone());
        let replica = self.replica_of(ticket);
        let opens = replica
            .is_some_and(|replica| replica.breaker.failed(ticket, now_s, &limits, &mut random));
        self.random = random;
        opens
    }

    /// The replica turned it away because it has too much to do.
    pub fn overloaded(&mut self, ticket: u64, until_s: f64) {
        if let Some(replica) = self.replica_of(ticket) {
            replica.breaker.overloaded(until_s);
        }
    }

    /// The request ended.
    pub fn release(&mut self, ticket: u64) {
        if let Some(replica) = self.replica_of(ticket) {
            replica.breaker.ended(ticket);
        }
        self.in_flight.release(ticket);
    }

    fn replica_of(&mut self, ticket: u64) -> Option<&mut Replica> {
        self.fleet.get_mut(self.in_flight.replica(ticket)?)
    }

    /// Forgets where a mirror stands; its blocks are still to be cleared.
    pub fn clear(&mut self, name: &str) -> Result<ReplicaId, RouterError> {
        let (id, replica) = self.fleet.find_mut(name)?;
        replica.position = Position::default();
        self.in_flight.forget_announced(id);
        Ok(id)
    }

    pub fn mirror(&self, name: &str) -> Result<MirrorStats, RouterError> {
        let (id, replica) = self.find(name)?;
        let tally = self.index.tally(id);
        Ok(MirrorStats {
            epoch: replica.position.epoch,
            seq: replica.position.seq,
            count: tally.count,
            digest: tally.digest,
            forgotten: self.index.forgotten(id).count,
        })
    }

    pub fn mirror_size_bytes(&self, name: &str) -> Result<u64, RouterError> {
        Ok(self.index.mirror_size_bytes(self.fleet.find(name)?))
    }

    pub fn load(&self, name: &str) -> Result<Load, RouterError> {
        Ok(self.find(name)?.1.report.load.clone())
    }

    pub fn blocks(&self, name: &str) -> Result<Vec<u64>, RouterError> {
        Ok(self.index.blocks(self.fleet.find(name)?))
    }

    pub fn in_flight_requests(&self, name: &str) -> Result<u32, RouterError> {
        Ok(self.in_flight.requests(self.fleet.find(name)?))
    }

    pub fn block_size(&self, model: &str) -> Option<u32> {
        self.fleet.model(model).map(|model| model.block_size)
    }

    pub fn check(&self) -> Result<(), RouterError> {
        self.index.check().map_err(RouterError::Broken)
    }

    /// The replica for a prompt, which is in flight there from now on; None if none can be picked.
    pub fn pick(
        &mut self,
        prompt: &Hashed<'_>,
        exclude: &[String],
        now_s: f64,
        matched: &mut dyn FnMut(),
    ) -> Option<Pick> {
        let choice = self.choose(prompt, exclude, now_s, matched)?;
        let Candidate {
            id,
            expected,
            is_sound,
            ..
        } = choice.candidate;
        self.random = choice.random;
        self.policy.picked(id);
        let sent = Sent {
            chain: prompt.chain,
            stored: self.matches.of(id),
            block_tokens: u64::from(prompt.block_size),
            prompt_tokens: prompt.tokens,
            uncached_tokens: prompt.tokens_beyond(expected),
        };
        let ticket = self.in_flight.send(id, &sent, now_s);
        if let Some(replica) = self.fleet.get_mut(id) {
            replica.breaker.sent(ticket, now_s, &self.breaker);
        }
        self.last_resorts += u64::from(!is_sound);
        Some(Pick {
            ticket,
            ..choice.pick
        })
    }

    pub fn walk(&self, model: &str, chain: &[u64], matches: &mut Matches) -> bool {
        let members = self.fleet.model(model).map(|model| &model.members);
        members.is_some_and(|members| {
            self.index.walk(chain, members, matches);
            true
        })
    }

    fn find(&self, name: &str) -> Result<(ReplicaId, &Replica), RouterError> {
        let id = self.fleet.find(name)?;
        let replica = self.fleet.get(id);
        let replica = replica.ok_or_else(|| RouterError::UnknownReplica(name.to_owned()))?;
        Ok((id, replica))
    }
}
