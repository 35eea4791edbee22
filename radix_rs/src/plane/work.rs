//! Threads beside the shards, for what would hold up all other calls of a shard.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::spawn;

/// Each has a thread, which takes short work when its own lane is empty: what is long in one way waits for its
/// like only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Less than a millisecond.
    Short,
    /// Texts, for tens of milliseconds.
    Texts,
    /// Large messages.
    Bodies,
}

const LANES: [Lane; 3] = [Lane::Short, Lane::Texts, Lane::Bodies];

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    lanes: [VecDeque<Job>; LANES.len()],
    is_over: bool,
}

#[derive(Default)]
pub(crate) struct Work {
    queue: Mutex<Queue>,
    comes: Condvar,
}

impl Work {
    pub fn start(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        let start = |lane| {
            let work = self.clone();
            spawn("work", move || {
                while let Some(job) = work.next(lane) {
                    job();
                }
            })
        };
        LANES.into_iter().map(start).collect()
    }

    /// Ends the threads; who waits is told that nobody answers.
    pub fn stop(&self) {
        let mut queue = self.queue();
        queue.is_over = true;
        queue.lanes = Default::default();
        self.comes.notify_all();
    }

    /// Where the result will come, or nothing if the plane ends or the job panics; who no longer waits drops it.
    pub fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, result) = oneshot::channel();
        let mut queue = self.queue();
        if queue.is_over {
            return result;
        }
        queue.lanes[lane as usize].push_back(Box::new(move || {
            if !answer.is_closed() {
                // What it was to make nobody has seen.
                if let Ok(made) = catch_unwind(AssertUnwindSafe(job)) {
                    let _ = answer.send(made); // who asked may have left
                }
            }
        }));
        // All, as the one that wakes may be the one that does not take it.
        self.comes.notify_all();
        result
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one; None: there will be no more.
    fn next(&self, lane: Lane) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.is_over {
                return None;
            }
            let own = queue.lanes[lane as usize].pop_front();
            if let Some(job) = own.or_else(|| queue.lanes[Lane::Short as usize].pop_front()) {
                return Some(job);
            }
            queue = self
                .comes
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_s_own_work_goes_first_and_short_work_waits_for_no_other() {
        let work = Work::default();
        let mut short = work.run(Lane::Short, || "short");
        let mut long = work.run(Lane::Texts, || "long");
        work.next(Lane::Texts).unwrap()();
        assert_eq!(long.try_recv(), Ok("long"));
        let _bodies = work.run(Lane::Bodies, || ());
        work.next(Lane::Short).unwrap()();
        assert_eq!(short.try_recv(), Ok("short"));
        let mut short = work.run(Lane::Short, || "helped");
        work.next(Lane::Texts).unwrap()();
        assert_eq!(short.try_recv(), Ok("helped"));
    }

    #[test]
    fn what_nobody_waits_for_is_not_done() {
        let work = Work::default();
        let done = Arc::new(());
        let held = done.clone();
        drop(work.run(Lane::Short, move || panic!("{held:?}")));
        work.next(Lane::Short).unwrap()();
        assert_eq!(Arc::strong_count(&done), 1);
    }

    #[test]
    fn a_job_that_panics_ends_no_thread() {
        let work = Arc::<Work>::default();
        let threads = work.start().unwrap();
        assert!(
            work.run(Lane::Bodies, || panic!("as it must"))
                .blocking_recv()
                .is_err()
        );
        assert_eq!(work.run(Lane::Bodies, || 7).blocking_recv(), Ok(7));
        work.stop();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(work.run(Lane::Bodies, || ()).blocking_recv().is_err());
    }

    #[test]
    fn who_waits_is_told_when_it_is_over() {
        let work = Work::default();
        let waiting = work.run(Lane::Texts, || ());
        work.stop();
        assert!(waiting.blocking_recv().is_err());
        assert!(work.next(Lane::Texts).is_none());
    }
}
