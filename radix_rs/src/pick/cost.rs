//! Policy `cost`, and the cost of a pick, in tokens of prefill: what it delays everybody by, this prompt included.
//!
//! `cost = ahead + own x (k + delayed) + decode_weight x decodes`
//!
//! - *ahead*: prefill the replica does before this prompt, in the replica's own order;
//! - *own*: tokens of the prompt that are neither cached nor expected there, at least 1;
//! - *delayed*: waiting prompts that this one goes before, each of which it delays by *own*;
//! - *k*: 1 is this prompt's own prefill; more also prices the cached blocks it will push out. Under first come,
//!   first served nothing is delayed, nobody's short prompt gets past a long one, and pushing out costs
//!   more: k counts [`FIRST_COME_K`] times there;
//! - *decodes*: requests being decoded slow a prefill a little; the term is small and mainly decides between
//!   replicas that are otherwise equal.
//!
//! What waits there is known from two sides. Single prompts are known exactly: this router's own, and those the
//! replica has announced. Its last report counts everybody's, each as if no other waited for the same blocks, by
//! class of remaining tokens; only prompts that it counts beyond those known are taken from it. A prompt sent since
//! the report cannot be in it. One sent before may be in it or may not have arrived then: it counts as known.
//!
//! The replica's order, as far as it can be known: a waiting prompt counts as smaller by a tenth of what could have
//! been computed since it came, and the chunk under way, of which half is taken to be done, is not interrupted.
#![expect(
    clippy::cast_precision_loss,
    reason = "tokens are far below 2^53, and a cost is an estimate"
)]

use super::candidate::{Candidate, lowest, ordered};
use super::load::{CLASSES, Class, LoadReport, class_of};
use super::pending::Pending;
use super::random::Random;

/// How much more k counts under first come, first served.
const FIRST_COME_K: f64 = 2.1;

/// Costs up to so many times the lowest are as good as equal: they are estimates, and routers that do not yet see
/// each other's prompts would all run to the very lowest.
const NEARLY: f64 = 1.01;

/// Of what could be computed while a prompt waits, the part that it counts as smaller by.
const AGING: f64 = 0.1;

/// Weights of the terms.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Of the prompt's own prefill.
    pub k: f64,
    /// Of a request being decoded, in tokens.
    pub decode: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            k: 1.75,
            decode: 1.0,
        }
    }
}

/// The terms of one replica, in tokens unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Prefill before this prompt's.
    pub ahead: f64,
    /// Waiting prompts that would wait for this one.
    pub delayed_requests: f64,
    /// What being decoded counts.
    pub decode_pressure: f64,
    /// All together.
    pub cost: f64,
}

/// Whether a cost is as good as the lowest, or lower.
pub(crate) fn is_nearly(cost: f64, lowest: f64) -> bool {
    cost <= NEARLY * lowest
}

/// Of those with nearly the lowest cost, where this router has least, then where new blocks push out least.
pub(crate) fn choose(candidates: &[Candidate], random: &mut Random) -> Option<usize> {
    let costs = candidates.iter().map(|candidate| candidate.terms.cost);
    let least = costs.fold(f64::INFINITY, f64::min);
    lowest(candidates, random, |candidate| {
        let is_dear = !is_nearly(candidate.terms.cost, least);
        (is_dear, candidate.in_flight, ordered(candidate.fill))
    })
}

/// Waiting prefill, seen from a prompt that would join it.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    ahead: f64,
    delayed: f64,
}

fn own_weight(report: &LoadReport, weights: Weights) -> f64 {
    if report.shortest_first() {
        weights.k
    } else {
        weights.k * FIRST_COME_K
    }
}

/// What a prompt's own prefill costs at least, wherever it is.
pub(crate) fn of_its_own(own: u64, weights: Weights) -> f64 {
    own as f64 * weights.k
}

/// The terms as they are where nothing waits: no cost is lower. As for [`terms`].
pub(crate) fn at_least(own: u64, report: &LoadReport, decodes: u64, weights: Weights) -> Terms {
    let decode_pressure = weights.decode * decodes as f64;
    Terms {
        decode_pressure,
        cost: own as f64 * own_weight(report, weights) + decode_pressure,
        ..Terms::default()
    }
}

/// The terms for a prompt with `own` tokens to compute. `decodes`: requests being decoded.
pub(crate) fn terms<'a>(
    own: u64,
    report: &LoadReport,
    pending: impl Iterator<Item = &'a Pending> + Clone,
    decodes: u64,
    weights: Weights,
    now_s: f64,
) -> Terms {
    let queue = if report.shortest_first() {
        shortest_first_queue(own, report, pending, now_s)
    } else {
        first_come_queue(report, pending)
    };
    let k = own_weight(report, weights);
    let decode_pressure = weights.decode * decodes as f64;
    Terms {
        ahead: queue.ahead,
        delayed_requests: queue.delayed,
        decode_pressure,
        cost: queue.ahead + own as f64 * (k + queue.delayed) + decode_pressure,
    }
}

fn first_come_queue<'a>(report: &LoadReport, pending: impl Iterator<Item = &'a Pending>) -> Queue {
    let (mut all, mut reported, mut requests) = (0, 0, 0);
    for prompt in pending {
        let tokens = prompt.remaining_tokens();
        all += tokens;
        if prompt.reported {
            reported += tokens;
            requests += 1;
        }
    }
    let unknown = if report.requests > requests {
        report.load.pending_tokens.saturating_sub(reported)
    } else {
        0
    };
    Queue {
        ahead: all.saturating_add(unknown) as f64,
        delayed: 0.0,
    }
}

fn shortest_first_queue<'a>(
    own: u64,
    report: &LoadReport,
    pending: impl Iterator<Item = &'a Pending> + Clone,
    now_s: f64,
) -> Queue {
    let forgiven_per_s = AGING * report.load.prefill_tokens_per_s as f64;
    let size = |prompt: &Pending| {
        prompt.remaining_tokens() as f64 - forgiven_per_s * prompt.waited_s(now_s)
    };
    let reported = pending.clone().filter(|prompt| prompt.reported);
    let under_way = reported.min_by(|a, b| size(a).total_cmp(&size(b)));
    let mut queue = Queue::default();
    let mut known = 0;
    for prompt in pending.clone() {
        let tokens = prompt.remaining_tokens();
        let is_under_way = under_way.is_some_and(|first| std::ptr::eq(first, prompt));
        let half_chunk = if is_under_way {
            tokens.min(report.load.chunk_tokens) as f64 / 2.0
        } else {
            0.0
        };
        if size(prompt) - half_chunk <= own as f64 {
            queue.ahead += tokens as f64 - half_chunk;
        } else {
            queue.ahead += half_chunk;
            queue.delayed += 1.0;
        }
        known += u64::from(prompt.reported);
    }
    if report.requests > known {
        let reported = pending.filter(|prompt| prompt.reported);
        add_unknown(
            &mut queue,
            own,
            report,
            reported.map(Pending::remaining_tokens),
        );
    }
    queue
}

/// Adds what is reported beyond the `known` prompts, given by their tokens. Who is known may have been reported in
/// another class, so as many of those beyond a class's known ones count as there are beyond all of them.
fn add_unknown(queue: &mut Queue, own: u64, report: &LoadReport, known: impl Iterator<Item = u64>) {
    let mut by_class = [0u64; CLASSES];
    let mut unknown = report.requests;
    for tokens in known {
        by_class[class_of(tokens)] += 1;
        unknown -= 1;
    }
    let beyond = |number: usize, class: &Class| class.requests.saturating_sub(by_class[number]);
    let beyond_all: u64 = report
        .classes
        .iter()
        .map(|(number, class)| beyond(*number, class))
        .sum();
    for (number, class) in &report.classes {
        let requests = unknown as f64 / beyond_all as f64 * beyond(*number, class) as f64;
        let below = part_up_to(own, *number);
        let mean = class.tokens as f64 / class.requests as f64;
        queue.ahead += below * requests * mean;
        queue.delayed += (1.0 - below) * requests;
    }
}

/// The part of a class that is not above `own`: only its sums are known, so its sizes are taken as spread evenly.
fn part_up_to(own: u64, number: usize) -> f64 {
    let low = 1u64 << number;
    let below = own.saturating_add(1).saturating_sub(low) as f64 / low as f64;
    below.min(1.0)
}
