//! A lock for many short uses and a long one that goes in steps.
//!
//! A batch of deltas may take a millisecond, a pick takes microseconds. So who applies a batch looks after every few
//! blocks whether anybody waits for the lock, and lets those go first. They spin a little before they sleep: a step
//! is shorter than waking up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Looks at what is waited for, some microseconds in all, before the thread sleeps or goes on.
const SPINS: usize = 400;

#[derive(Debug)]
pub(crate) struct Turns<T> {
    value: Mutex<T>,
    /// Threads that want it. Only a hint: it guards nothing.
    waiting: AtomicUsize,
}

impl<T> Turns<T> {
    pub fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            waiting: AtomicUsize::new(0),
        }
    }

    /// A panic elsewhere does not take everybody down: a mirror it left half-changed shows in its digest.
    pub fn take(&self) -> MutexGuard<'_, T> {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let spun = (0..SPINS).find_map(|_| {
            std::hint::spin_loop();
            self.try_take()
        });
        let asleep = || self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = spun.unwrap_or_else(asleep);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whether anybody waits for it.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Between two steps, without the lock: lets those who wait take it first, but for some microseconds only.
    pub fn give_way(&self) {
        for _ in 0..SPINS {
            if !self.is_wanted() {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_gets_in_between_the_steps_of_another() {
        let turns = Turns::new(0u32);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    *turns.take() += 1;
                    turns.give_way();
                }
            });
            let mut last = 0;
            for _ in 0..1000 {
                let seen = *turns.take();
                assert!(seen >= last);
                last = seen;
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_panic_while_it_is_held_leaves_it_to_others() {
        let turns = Turns::new(1);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = turns.take();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && *turns.take() == 1);
    }
}
