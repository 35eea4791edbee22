//! How many requests the router takes at once, and who waits for how long.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::caller::{Caller, End};
use super::status::Refusal;

/// Bounds of what is taken.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests in flight.
    pub max_inflight: usize,
    /// Requests that wait until fewer are; above it they are refused at once.
    pub queue_size: usize,
    /// How long one waits at most.
    pub queue_timeout: Duration,
}

/// Counts what is in flight; above the bound requests wait, above another one they are refused.
///
/// Who has waited goes on by priority, and tenants of one priority in turn, whatever each has queued: a request's
/// place is one after its tenant's last, or after the last that went (start-time fair queueing: Goyal, Vin and
/// Cheng, 1996, with requests of one length).
#[derive(Debug)]
pub(crate) struct Admission {
    bounds: RwLock<Bounds>,
    /// By which tenants are told apart.
    names: RandomState,
    state: Mutex<State>,
}

/// Lowest first: what is asked least of, the place, and the order of coming.
type Turn = (i64, u64, u64);

#[derive(Debug, Default)]
struct State {
    inflight: usize,
    taken: u64,
    come: u64,
    /// Place of the last that went.
    went: u64,
    /// Those of whom somebody waits.
    tenants: HashMap<u64, Tenant>,
    queue: BTreeMap<Turn, (u64, oneshot::Sender<()>)>,
}

#[derive(Debug, Default)]
struct Tenant {
    waiting: usize,
    /// Place of its last.
    last: u64,
}

impl State {
    fn pop_first(&mut self) -> Option<(Turn, oneshot::Sender<()>)> {
        let turn = *self.queue.first_key_value()?.0;
        self.remove(&turn).map(|sender| (turn, sender))
    }

    /// A tenant of whom nobody waits any more is forgotten: what went of it is behind `went`, so that it would be
    /// placed as one that never came.
    fn remove(&mut self, turn: &Turn) -> Option<oneshot::Sender<()>> {
        let (tenant, sender) = self.queue.remove(turn)?;
        if let Entry::Occupied(mut entry) = self.tenants.entry(tenant) {
            entry.get_mut().waiting -= 1;
            if entry.get().waiting == 0 {
                entry.remove();
            }
        }
        Some(sender)
    }

    /// Gives a place to who waits next; false if nobody does.
    fn let_next_go(&mut self) -> bool {
        while let Some(((_, place, _), next)) = self.pop_first() {
            self.went = self.went.max(place);
            if next.send(()).is_ok() {
                self.taken += 1;
                return true;
            }
        }
        false
    }
}

impl Admission {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds: RwLock::new(bounds),
            names: RandomState::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bounds(&self) -> Bounds {
        *self.bounds.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other bounds from now on: who waits goes if there is room, and nobody else until there is.
    pub fn set_bounds(&self, bounds: Bounds) {
        *self.bounds.write().unwrap_or_else(PoisonError::into_inner) = bounds;
        let mut state = self.state();
        while state.inflight < bounds.max_inflight && state.let_next_go() {
            state.inflight += 1;
        }
    }

    /// One more is in flight, until `leave`; false if there are as many as may be.
    pub fn enter(&self) -> bool {
        let mut state = self.state();
        let is_free = state.inflight < self.bounds().max_inflight;
        if is_free {
            state.inflight += 1;
            state.taken += 1;
        }
        is_free
    }

    /// Its place goes to who waits, if anybody does.
    pub fn leave(&self) {
        let max_inflight = self.bounds().max_inflight;
        let mut state = self.state();
        if state.inflight > max_inflight || !state.let_next_go() {
            state.inflight -= 1;
        }
    }

    pub fn inflight(&self) -> usize {
        self.state().inflight
    }

    /// How many were ever taken.
    pub fn taken(&self) -> u64 {
        self.state().taken
    }

    /// How many wait.
    pub fn queued(&self) -> usize {
        self.state().queue.len()
    }

    /// In flight until what is returned is dropped: at once, or after waiting in turn.
    pub async fn admit(
        &self,
        caller: &mut Caller,
        priority: i32,
        tenant: (&str, &str),
    ) -> Result<Admitted<'_>, End> {
        let Some(mut waiting) = self.queue(priority, tenant)? else {
            return Ok(Admitted(self));
        };
        let waited = caller
            .wait(timeout(self.bounds().queue_timeout, &mut waiting.turn))
            .await?;
        if waited.is_err() {
            let seconds = self.bounds().queue_timeout.as_secs_f64();
            return Err(Refusal::busy(format!(
                "no request of this router ended within {seconds} s"
            ))
            .into());
        }
        waiting.has_come = true;
        Ok(Admitted(self))
    }

    /// None if it need not wait.
    fn queue(&self, priority: i32, tenant: (&str, &str)) -> Result<Option<Waiting<'_>>, Refusal> {
        let mut state = self.state();
        if state.inflight < self.bounds().max_inflight {
            state.inflight += 1;
            state.taken += 1;
            return Ok(None);
        }
        if state.queue.len() >= self.bounds().queue_size {
            let inflight = state.inflight;
            let waiting = match state.queue.len() {
                0 => String::new(),
                queued => format!(", and {queued} wait"),
            };
            let message =
                format!("{inflight} requests are in flight, the most this router takes{waiting}");
            return Err(Refusal::busy(message));
        }
        let name = self.names.hash_one(tenant);
        let went = state.went;
        let tenant = state.tenants.entry(name).or_default();
        let place = tenant.last.max(went) + 1;
        tenant.last = place;
        tenant.waiting += 1;
        state.come += 1;
        let turn = (-i64::from(priority), place, state.come);
        let (sender, receiver) = oneshot::channel();
        state.queue.insert(turn, (name, sender));
        Ok(Some(Waiting {
            admission: self,
            at: turn,
            turn: receiver,
            has_come: false,
        }))
    }
}

/// A request that waits for its turn; who drops it gives the turn up.
struct Waiting<'a> {
    admission: &'a Admission,
    at: Turn,
    turn: oneshot::Receiver<()>,
    has_come: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.has_come {
            let was_queued = self.admission.state().remove(&self.at).is_some();
            if !was_queued && self.turn.try_recv().is_ok() {
                self.admission.leave(); // it came at the last moment
            }
        }
    }
}

/// A request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted<'a>(&'a Admission);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::Code;
    use super::*;

    fn admission(max_inflight: usize, queue_size: usize) -> Admission {
        Admission::new(Bounds {
            max_inflight,
            queue_size,
            queue_timeout: Duration::from_secs(1),
        })
    }

    fn queued<'a>(admission: &'a Admission, priority: i32, tenant: &'static str) -> Waiting<'a> {
        admission.queue(priority, (tenant, "")).unwrap().unwrap()
    }

    fn next(waiting: &mut Vec<(&'static str, Waiting<'_>)>) -> &'static str {
        waiting[0].1.admission.leave();
        let place = waiting.iter_mut().position(|(_, waiting)| {
            waiting.has_come = waiting.turn.try_recv().is_ok();
            waiting.has_come
        });
        waiting.remove(place.unwrap()).0
    }

    #[test]
    fn who_has_no_place_is_refused_and_told_when_to_ask_again() {
        let admission = admission(1, 0);
        assert!(admission.queue(0, ("", "")).unwrap().is_none());
        let refusal = admission.queue(0, ("", "")).err().unwrap();
        assert_eq!(refusal.code, Code::ResourceExhausted);
        assert_eq!(refusal.trailers.unwrap()["retry-after"], "1");
        admission.leave();
        assert!(admission.enter() && !admission.enter());
        assert_eq!((admission.inflight(), admission.taken()), (1, 2));
    }

    #[test]
    fn the_higher_priority_goes_first_and_equals_in_their_order() {
        let admission = admission(1, 9);
        assert!(admission.enter());
        let mut waiting = vec![
            ("second", queued(&admission, 0, "a")),
            ("last", queued(&admission, -5, "a")),
            ("third", queued(&admission, 0, "a")),
            ("first", queued(&admission, 7, "a")),
        ];
        let order: Vec<_> = (0..4).map(|_| next(&mut waiting)).collect();
        assert_eq!(order, ["first", "second", "third", "last"]);
        assert_eq!((admission.inflight(), admission.queued()), (1, 0));
    }

    #[test]
    fn tenants_take_turns_however_much_one_has_queued() {
        let admission = admission(1, 99);
        assert!(admission.enter());
        let mut waiting: Vec<_> = (0..10).map(|_| ("a", queued(&admission, 0, "a"))).collect();
        let mut order = vec![next(&mut waiting), next(&mut waiting)];
        waiting.extend((0..3).map(|_| ("b", queued(&admission, 0, "b"))));
        order.extend((0..6).map(|_| next(&mut waiting)));
        assert_eq!(order.join(""), "aaababab");
    }

    #[test]
    fn bounds_may_change_while_some_run_and_some_wait() {
        let admission = admission(1, 9);
        assert!(admission.enter());
        let mut waiting: Vec<_> = (0..3).map(|_| ("a", queued(&admission, 0, "a"))).collect();
        let bounds = admission.bounds();
        admission.set_bounds(Bounds {
            max_inflight: 3,
            ..bounds
        });
        assert_eq!((admission.inflight(), admission.queued()), (3, 1));
        for (_, waiting) in &mut waiting[..2] {
            waiting.has_come = waiting.turn.try_recv().is_ok();
            assert!(waiting.has_come);
        }
        admission.set_bounds(bounds);
        admission.leave();
        admission.leave();
        assert_eq!((admission.inflight(), admission.queued()), (1, 1));
        admission.leave(); // to the last that waits
        assert_eq!((admission.inflight(), admission.queued()), (1, 0));
    }

    #[test]
    fn who_gives_up_leaves_no_hole() {
        let admission = admission(1, 9);
        assert!(admission.enter());
        let (first, second) = (queued(&admission, 0, "a"), queued(&admission, 0, "a"));
        drop(first);
        assert_eq!(admission.queued(), 1);
        admission.leave(); // to the second, which gives it back
        assert_eq!((admission.inflight(), admission.queued()), (1, 0));
        drop(second);
        assert_eq!(admission.inflight(), 0);
    }

    #[test]
    fn tenants_are_remembered_while_one_of_theirs_waits_and_no_longer() {
        let admission = admission(1, 9);
        assert!(admission.enter());
        let first = queued(&admission, 0, "first");
        for salt in 0..1000 {
            drop(admission.queue(0, (&salt.to_string(), "")).unwrap());
        }
        assert_eq!(admission.state().tenants.len(), 1);
        admission.leave(); // to the first
        assert!(admission.state().tenants.is_empty());
        drop(first);
    }
}
