//! A circuit breaker for each replica: what its answers say of whether it should get more requests.
//!
//! It opens when requests fail there, stays open for a time that doubles from try to try, and then lets one request
//! through: if that is answered it closes, if it fails it opens for longer. A replica that says it is overloaded is
//! passed over for a moment. Either ends by time alone, and neither is ever the reason why nobody is picked: if
//! there are none but such replicas, one of them is tried.

use std::collections::HashSet;

use super::random::Random;

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerLimits {
    /// So many failures open it, if no more requests than these were answered meanwhile.
    pub failures: u32,
    /// Seconds for which they are counted; some for up to half as much longer.
    pub window_s: f64,
    /// How long it stays open at first, at most.
    pub open_s: f64,
    /// How long after many tries, at most.
    pub max_open_s: f64,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        Self {
            failures: 5,
            window_s: 10.0,
            open_s: 1.0,
            max_open_s: 30.0,
        }
    }
}

/// What is known of a replica by its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It answers, or has had no chance to.
    Closed,
    /// It said that it has too much to do, a moment ago.
    Overloaded,
    /// Its requests failed, and it is too early to try again.
    Open,
    /// Its requests failed, and one may try again; perhaps it is under way.
    HalfOpen,
}

impl BreakerState {
    /// Every one, in the order in which things get worse and better.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Overloaded, Self::Open, Self::HalfOpen];

    /// Its name in the Python face.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Overloaded => "overloaded",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Of one replica. Requests are named by their tickets, and times come from the callers.
#[derive(Debug)]
pub(crate) struct Breaker {
    recent: Recent,
    /// Until when it is open, half open from then on; None while it is closed.
    open_until_s: Option<f64>,
    /// Requests that were sent while it was not closed.
    probes: HashSet<u64>,
    /// How often it opened without having stayed closed in between.
    tries: i32,
    closed_s: f64,
    overloaded_until_s: f64,
    openings: u64,
    /// What the clock said last.
    now_s: f64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            recent: Recent::default(),
            open_until_s: None,
            probes: HashSet::new(),
            tries: 0,
            closed_s: f64::NEG_INFINITY,
            overloaded_until_s: f64::NEG_INFINITY,
            openings: 0,
            now_s: f64::NEG_INFINITY,
        }
    }
}

impl Breaker {
    pub fn state(&self, now_s: f64) -> BreakerState {
        match self.open_until_s {
            Some(until_s) if now_s < until_s => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
            None if now_s < self.overloaded_until_s => BreakerState::Overloaded,
            None => BreakerState::Closed,
        }
    }

    /// Whether one more request should go there, if it can also go elsewhere.
    pub fn admits(&self, now_s: f64) -> bool {
        now_s >= self.overloaded_until_s
            && match self.open_until_s {
                Some(until_s) => now_s >= until_s && self.probes.is_empty(),
                None => true,
            }
    }

    /// How often it opened.
    pub fn openings(&self) -> u64 {
        self.openings
    }

    /// A request goes there, admitted or not.
    pub fn sent(&mut self, ticket: u64, now_s: f64, limits: &BreakerLimits) {
        self.now_s = now_s;
        self.recent.turn(now_s, limits.window_s);
        if self.open_until_s.is_some() {
            self.probes.insert(ticket);
        }
    }

    /// Its answer begins; true if that closes the breaker. What was sent before it opened proves nothing.
    pub fn answered(&mut self, ticket: u64) -> bool {
        self.recent.now.answered += 1;
        let closes = self.open_until_s.is_some() && self.probes.contains(&ticket);
        if closes {
            self.open_until_s = None;
            self.closed_s = self.now_s;
            self.recent = Recent::default();
        }
        closes
    }

    /// It failed, with or without the beginning of an answer; true if that opens the breaker.
    pub fn failed(
        &mut self,
        ticket: u64,
        now_s: f64,
        limits: &BreakerLimits,
        random: &mut Random,
    ) -> bool {
        self.now_s = now_s;
        self.recent.turn(now_s, limits.window_s);
        self.recent.now.failed += 1;
        let opens = match self.state(now_s) {
            BreakerState::Open => false,
            BreakerState::HalfOpen => self.probes.contains(&ticket),
            BreakerState::Closed | BreakerState::Overloaded => self.recent.is_bad(limits.failures),
        };
        if opens {
            let has_stayed_closed =
                self.open_until_s.is_none() && now_s - self.closed_s >= limits.max_open_s;
            self.tries = if has_stayed_closed { 0 } else { self.tries + 1 };
            let longest_s = (limits.open_s * 2f64.powi(self.tries)).min(limits.max_open_s);
            self.open_until_s = Some(now_s + longest_s * (0.5 + random.share() / 2.0));
            self.openings += 1;
        }
        opens
    }

    /// It was turned away because there is too much to do; passed over until `until_s`.
    pub fn overloaded(&mut self, until_s: f64) {
        self.overloaded_until_s = self.overloaded_until_s.max(until_s);
    }

    /// The request is over, however it ended.
    pub fn ended(&mut self, ticket: u64) {
        self.probes.remove(&ticket);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    answered: u32,
    failed: u32,
}

/// How requests ended in two parts of the time, each half a window long: the one that runs, and the one before.
#[derive(Debug)]
struct Recent {
    began_s: f64,
    now: Outcomes,
    before: Outcomes,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            began_s: f64::NEG_INFINITY,
            now: Outcomes::default(),
            before: Outcomes::default(),
        }
    }
}

impl Recent {
    fn turn(&mut self, now_s: f64, window_s: f64) {
        let passed_s = now_s - self.began_s;
        if passed_s >= window_s / 2.0 {
            let is_next = passed_s < window_s;
            self.before = if is_next {
                self.now
            } else {
                Outcomes::default()
            };
            self.now = Outcomes::default();
            self.began_s = now_s;
        }
    }

    fn is_bad(&self, failures: u32) -> bool {
        let failed = self.now.failed + self.before.failed;
        failed >= failures && failed >= self.now.answered + self.before.answered
    }
}
