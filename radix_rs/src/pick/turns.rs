//! A lock for many short uses and a long one that goes in steps.
//!
//! A batch of deltas may take a millisecond, a pick microseconds. So who applies a batch offers the lock to others
//! after every few blocks: with nobody waiting that costs one load. Who waits spins a little before it sleeps, for a
//! step is shorter than waking up.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Looks at the lock, some microseconds in all, before the thread sleeps, or before who offered it goes on.
const SPINS: usize = 400;

#[derive(Debug)]
pub(crate) struct Turns<T> {
    value: Mutex<T>,
    /// Threads that want it.
    waiting: AtomicUsize,
}

impl<T> Turns<T> {
    pub fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            waiting: AtomicUsize::new(0),
        }
    }

    pub fn take(&self) -> Turn<'_, T> {
        let guard = self.try_lock().unwrap_or_else(|| self.wait());
        Turn {
            turns: self,
            guard: Some(guard),
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let spun = (0..SPINS).find_map(|_| {
            std::hint::spin_loop();
            self.try_lock()
        });
        let guard = spun.unwrap_or_else(|| self.lock());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// A panic elsewhere does not take everybody down: a mirror it left half-changed shows in its digest.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

pub(crate) struct Turn<'a, T> {
    turns: &'a Turns<T>,
    /// None only while it is offered.
    guard: Option<MutexGuard<'a, T>>,
}

impl<T> Turn<'_, T> {
    /// Lets those who wait go first, once each. What was read before may be otherwise afterwards.
    pub fn offer(&mut self) {
        if self.turns.waiting.load(Ordering::Relaxed) > 0 {
            self.give_way();
        }
    }

    #[cold]
    fn give_way(&mut self) {
        self.guard = None;
        for _ in 0..SPINS {
            if self.turns.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.guard = Some(self.turns.lock());
    }
}
