//! From what is known to a choice: where a prompt should go, and what speaks for it.

use std::ops::ControlFlow;

use super::answers::{Explained, Pick, Reason};
use super::candidate::Candidate;
use super::core::{Core, Hashed};
use super::cost::{self, Terms};
use super::finds::{Find, Finds};
use super::fleet::Replica;
use super::random::Random;
use crate::index::ReplicaId;

/// A pick before it is made.
pub(super) struct Choice {
    pub candidate: Candidate,
    /// The generator after it.
    pub random: Random,
    pub pick: Pick,
}

impl Core {
    /// What `pick` would say; leaves everything as it is.
    pub fn peek(&mut self, prompt: &Hashed<'_>, now_s: f64) -> Option<Pick> {
        Some(self.choose(prompt, &[], now_s, &mut || ())?.pick)
    }

    /// Every replica of the model with its figures, by name.
    pub fn explain(&mut self, prompt: &Hashed<'_>, now_s: f64) -> Vec<Explained> {
        self.in_flight.expire(now_s);
        let Some(model) = self.fleet.model(prompt.model) else {
            return Vec::new();
        };
        self.index
            .walk(prompt.chain, &model.members, &mut self.matches);
        let finds = Finds::new(&self.matches, self.in_flight.along(prompt.chain));
        let explained = finds.most_first(&model.members).filter_map(|find| {
            let replica = self.fleet.get(find.replica)?;
            let mut candidate = self.candidate(prompt, find, replica, now_s);
            candidate.terms = self.terms(prompt, &candidate, replica, now_s);
            Some(Explained {
                replica: replica.name.clone(),
                eligible: replica.takes_prompts() && candidate.is_sound,
                breaker: replica.breaker.state(now_s),
                candidate,
            })
        });
        let mut all: Vec<_> = explained.collect();
        all.sort_by(|a, b| a.replica.cmp(&b.replica));
        all
    }

    pub(super) fn choose(
        &mut self,
        prompt: &Hashed<'_>,
        exclude: &[String],
        now_s: f64,
        matched: &mut dyn FnMut(),
    ) -> Option<Choice> {
        self.in_flight.expire(now_s);
        let members = &self.fleet.model(prompt.model)?.members;
        self.index.walk(prompt.chain, members, &mut self.matches);
        matched();
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let finds = Finds::new(&self.matches, self.in_flight.along(prompt.chain));
        let open = |id| {
            let replica = self.fleet.get(id);
            replica.filter(|replica| replica.takes_prompts() && !exclude.contains(&replica.name))
        };
        let is_sound = |replica: &Replica| replica.is_sound(now_s);
        let some_are_sound = members.iter().filter_map(open).any(is_sound);
        let may_go = |id| open(id).filter(|replica| !some_are_sound || is_sound(replica));
        let found = finds.most_first(members);
        if self.policy.weighs_costs() {
            self.cheapest(prompt, found, may_go, now_s, &mut candidates);
        } else {
            candidates.extend(found.filter_map(|find| {
                let replica = may_go(find.replica)?;
                Some(self.candidate(prompt, find, replica, now_s))
            }));
        }
        // Stable, for it is quick where most are in order: those of one group are.
        candidates.sort_by_key(|candidate| candidate.id);
        let available = finds.longest_first().find(|&(_, id)| may_go(id).is_some());
        let available = prompt.tokens_of(available.map_or(0, |(blocks, _)| blocks));
        let choice = self.choose_among(prompt, &candidates, available);
        self.candidates = candidates;
        choice
    }

    /// Candidates that may have nearly the lowest cost, with all their terms.
    fn cheapest<'a>(
        &self,
        prompt: &Hashed<'_>,
        mut most_first: impl Iterator<Item = Find>,
        may_go: impl Fn(ReplicaId) -> Option<&'a Replica>,
        now_s: f64,
        candidates: &mut Vec<Candidate>,
    ) {
        let mut least = f64::INFINITY;
        let _ = most_first.try_for_each(|find| {
            let own = prompt.tokens_beyond(prompt.tokens_of(find.expected));
            if !cost::is_nearly(cost::of_its_own(own, self.weights), least) {
                // Those that come now have as much to compute, or more.
                return ControlFlow::Break(());
            }
            if let Some(replica) = may_go(find.replica) {
                let mut candidate = self.candidate(prompt, find, replica, now_s);
                if cost::is_nearly(candidate.terms.cost, least) {
                    candidate.terms = self.terms(prompt, &candidate, replica, now_s);
                    least = least.min(candidate.terms.cost);
                    candidates.push(candidate);
                }
            }
            ControlFlow::Continue(())
        });
    }

    fn choose_among(
        &self,
        prompt: &Hashed<'_>,
        candidates: &[Candidate],
        available: u64,
    ) -> Option<Choice> {
        let mut random = self.random.clone();
        let candidate = candidates[self.policy.choose(prompt, candidates, &mut random)?];
        let longest = candidates.iter().map(|c| c.expected).max().unwrap_or(0);
        let reason = if !self.policy.sees_prefixes() {
            Reason::Policy
        } else if longest == 0 {
            Reason::Cold
        } else if candidate.expected == longest {
            Reason::Prefix
        } else {
            Reason::Load
        };
        let pick = Pick {
            replica: self.fleet.get(candidate.id)?.name.clone(),
            matched: candidate.matched,
            available,
            reason,
            ticket: 0,
        };
        Some(Choice {
            candidate,
            random,
            pick,
        })
    }

    /// One with the cost that it has at least.
    fn candidate(
        &self,
        prompt: &Hashed<'_>,
        find: Find,
        replica: &Replica,
        now_s: f64,
    ) -> Candidate {
        let id = find.replica;
        let expected = prompt.tokens_of(find.expected);
        let in_flight = self.in_flight.requests(id);
        let load = &replica.report.load;
        Candidate {
            id,
            name_hash: replica.name_hash,
            is_sound: replica.is_sound(now_s),
            matched: prompt.tokens_of(find.matched),
            expected,
            terms: cost::at_least(
                prompt.tokens_beyond(expected),
                &replica.report,
                self.decodes(id, replica),
                self.weights,
            ),
            in_flight,
            requests: (u64::from(load.running) + u64::from(load.waiting)).max(u64::from(in_flight)),
            pending_tokens: load.pending_tokens,
            fill: fill(self.index.tally(id).count, replica),
        }
    }

    /// Requests being decoded there.
    fn decodes(&self, id: ReplicaId, replica: &Replica) -> u64 {
        let in_flight = u64::from(self.in_flight.requests(id));
        let answers = in_flight - self.in_flight.prefills(id) as u64;
        u64::from(replica.report.load.running).max(answers)
    }

    /// What the pick would cost.
    fn terms(
        &self,
        prompt: &Hashed<'_>,
        candidate: &Candidate,
        replica: &Replica,
        now_s: f64,
    ) -> Terms {
        cost::terms(
            prompt.tokens_beyond(candidate.expected),
            &replica.report,
            self.in_flight.pending(candidate.id),
            self.decodes(candidate.id, replica),
            self.weights,
            now_s,
        )
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "only compared with others of its kind"
)]
fn fill(blocks: u64, replica: &Replica) -> f64 {
    let cached = (blocks * u64::from(replica.block_size)) as f64;
    cached / replica.report.load.total_slots.max(1) as f64
}
