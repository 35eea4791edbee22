//! The order in which runs are forgotten: a list of all that end a branch, the first to go in front.
//!
//! A run that was used since it was queued goes back to the end when its turn comes (second chance: Corbató, 1968),
//! unless even so it was used before the next one came: using one costs a note in it and no more, and readers can do it.
//! One that got children since leaves the list when its turn comes.

use super::arena::Arena;
use super::run::{RunId, Tick};

/// A run's neighbours in the list, and when it came there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    before: Option<RunId>,
    after: Option<RunId>,
    queued: Tick,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    first: Option<RunId>,
    last: Option<RunId>,
}

impl Queue {
    pub fn first(&self) -> Option<RunId> {
        self.first
    }

    /// When the run after this one was queued.
    pub fn queued_after(runs: &Arena, id: RunId) -> Option<Tick> {
        let after = runs[id].place?.after?;
        Some(runs[after].place?.queued)
    }

    /// At the end.
    pub fn push(&mut self, runs: &mut Arena, id: RunId, now: Tick) {
        let place = Place {
            before: self.last,
            after: None,
            queued: now,
        };
        self.put(runs, id, place);
    }

    pub fn push_first(&mut self, runs: &mut Arena, id: RunId, now: Tick) {
        let place = Place {
            before: None,
            after: self.first,
            queued: now,
        };
        self.put(runs, id, place);
    }

    fn put(&mut self, runs: &mut Arena, id: RunId, place: Place) {
        runs[id].place = Some(place);
        self.join(runs, place.before, Some(id));
        self.join(runs, Some(id), place.after);
    }

    /// Takes a run out, if it is there.
    pub fn remove(&mut self, runs: &mut Arena, id: RunId) {
        if let Some(Place { before, after, .. }) = runs[id].place.take() {
            self.join(runs, before, after);
        }
    }

    /// Runs in the list. Looks at each.
    pub fn len(&self, runs: &Arena) -> usize {
        let after = |&id: &RunId| runs[id].place.and_then(|place| place.after);
        std::iter::successors(self.first, after).count()
    }

    /// Makes them neighbours; None stands for the list's ends.
    fn join(&mut self, runs: &mut Arena, before: Option<RunId>, after: Option<RunId>) {
        let place = |runs: &mut Arena, id: RunId, set: &dyn Fn(&mut Place)| {
            if let Some(place) = &mut runs[id].place {
                set(place);
            }
        };
        match before {
            Some(id) => place(runs, id, &|place| place.after = after),
            None => self.first = after,
        }
        match after {
            Some(id) => place(runs, id, &|place| place.before = before),
            None => self.last = before,
        }
    }
}
