//! The cost of a pick, in tokens of prefill: what it delays everybody by, this prompt included.
//!
//! `cost = ahead + own x (k + delayed) + decode_weight x decodes`
//!
//! - *ahead*: prefill the replica does before this prompt, in the replica's own order;
//! - *own*: tokens of the prompt that are neither cached nor expected there, at least 1;
//! - *delayed*: waiting prompts that this one goes before, each of which it delays by *own*;
//! - *k*: 1 is this prompt's own prefill; more also prices the cached blocks it will push out. Under first come,
//!   first served nothing is delayed, nobody's short prompt gets past a long one, and pushing out costs
//!   more: k counts twice there;
//! - *decodes*: requests being decoded slow a prefill a little; the term is small and mainly decides between
//!   replicas that are otherwise equal.
//!
//! What waits there is known from two sides: the replica's last report counts everybody's prompts by class of
//! remaining tokens, and single prompts are known exactly: this router's own, and those the replica has
//! announced. A prompt sent since the last report cannot be in it and is added. One sent before may be in it or
//! may not have arrived then, and one announced is in it, so for each class the fuller of the two views counts,
//! and no prompt counts twice.
//!
//! Left out: the replica ages waiting prompts by a tenth of what it could have computed meanwhile, so an old long
//! one may go before a new short one; and a chunk that is under way is not interrupted.
#![expect(
    clippy::cast_precision_loss,
    reason = "tokens are far below 2^53, and a cost is an estimate"
)]

use super::load::{CLASSES, Class, LoadReport, class_of};
use super::pending::Pending;

/// Weights of the terms.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Of the prompt's own prefill.
    pub k: f64,
    /// Of a request being decoded, in tokens.
    pub decode: f64,
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

/// Waiting prefill, seen from a prompt that would join it.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    ahead: f64,
    delayed: f64,
}

impl Queue {
    fn add(&mut self, other: Self) {
        self.ahead += other.ahead;
        self.delayed += other.delayed;
    }

    /// One prompt with `tokens` left.
    fn prompt(tokens: u64, own: u64) -> Self {
        if tokens <= own {
            let ahead = tokens as f64;
            Self {
                ahead,
                delayed: 0.0,
            }
        } else {
            Self {
                ahead: 0.0,
                delayed: 1.0,
            }
        }
    }

    /// A class of which only the sums are known: its sizes are taken as spread evenly over its range.
    fn class(number: usize, class: Class, own: u64) -> Self {
        let low = 1u64 << number;
        let below = own.saturating_add(1).saturating_sub(low) as f64 / low as f64;
        let below = below.min(1.0);
        Self {
            ahead: below * class.tokens as f64,
            delayed: (1.0 - below) * class.requests as f64,
        }
    }
}

/// The terms for a prompt with `own` tokens to compute. `decodes`: requests being decoded.
pub(crate) fn terms<'a>(
    own: u64,
    report: &LoadReport,
    pending: impl Iterator<Item = &'a Pending>,
    decodes: u64,
    weights: Weights,
) -> Terms {
    let shortest_first = report.shortest_first();
    let queue = if shortest_first {
        shortest_first_queue(own, report, pending)
    } else {
        first_come_queue(report, pending)
    };
    let k = weights.k * if shortest_first { 1.0 } else { 2.0 };
    let decode_pressure = weights.decode * decodes as f64;
    Terms {
        ahead: queue.ahead,
        delayed_requests: queue.delayed,
        decode_pressure,
        cost: queue.ahead + own as f64 * (k + queue.delayed) + decode_pressure,
    }
}

fn first_come_queue<'a>(report: &LoadReport, pending: impl Iterator<Item = &'a Pending>) -> Queue {
    let (mut reported, mut new) = (0, 0);
    for prompt in pending {
        let sum = if prompt.reported {
            &mut reported
        } else {
            &mut new
        };
        *sum += prompt.remaining_tokens();
    }
    Queue {
        ahead: report.load.pending_tokens.max(reported).saturating_add(new) as f64,
        delayed: 0.0,
    }
}

fn shortest_first_queue<'a>(
    own: u64,
    report: &LoadReport,
    pending: impl Iterator<Item = &'a Pending>,
) -> Queue {
    let mut sum = Queue::default();
    let mut known = [(0u64, Queue::default()); CLASSES];
    for prompt in pending {
        let tokens = prompt.remaining_tokens();
        let place = Queue::prompt(tokens, own);
        if prompt.reported {
            let (requests, class) = &mut known[class_of(tokens)];
            *requests += 1;
            class.add(place);
        } else {
            sum.add(place);
        }
    }
    for (number, (&class, &(requests, known))) in report.classes.iter().zip(&known).enumerate() {
        sum.add(if requests >= class.requests {
            known
        } else {
            Queue::class(number, class, own)
        });
    }
    sum
}
