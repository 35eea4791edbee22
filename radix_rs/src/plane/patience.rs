//! When a client's connection is over though it gives signs of life: it takes nothing, asks nothing, or is to leave
//! and does not.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use super::connections::Seated;
use super::limits::{LEAVE_TIMEOUT, REST_TIMEOUT};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It is to be told to leave.
    Rested,
    /// It is over.
    Over,
}

pub(crate) struct Patience {
    write_stall: Duration,
    timer: Pin<Box<Sleep>>,
    told: Option<Instant>,
}

impl Patience {
    /// `write_stall`: how long a client may take nothing of what waits for it.
    pub fn new(write_stall: Duration) -> Self {
        let first = Instant::now() + REST_TIMEOUT;
        Self {
            write_stall,
            timer: Box::pin(sleep_until(first.into())),
            told: None,
        }
    }

    /// It has been told to leave, and does so when its calls are over.
    pub fn told(&mut self) {
        self.told.get_or_insert_with(Instant::now);
    }

    /// Ready once patience is lost. `stuck`: since when the client takes nothing.
    pub fn poll_lost(
        &mut self,
        cx: &mut Context<'_>,
        seated: &Seated,
        stuck: Option<Instant>,
    ) -> Poll<Lost> {
        loop {
            let over = stuck.map(|since| since + self.write_stall);
            let rests = seated.rests_since().map(|since| match self.told {
                Some(told) => (told.max(since) + LEAVE_TIMEOUT, Lost::Over),
                None => (since + REST_TIMEOUT, Lost::Rested),
            });
            let dues = [over.map(|due| (due, Lost::Over)), rests];
            let next = dues.into_iter().flatten().min_by_key(|(due, _)| *due);
            // While it has calls nothing is due before as long a rest as may be.
            let (due, lost) = next.unwrap_or((Instant::now() + REST_TIMEOUT, Lost::Rested));
            // A timer that is early costs one more look, so it is set anew only when it is late.
            if due < self.timer.deadline().into_std() {
                self.timer.as_mut().reset(due.into());
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if due <= Instant::now() {
                return Poll::Ready(lost);
            }
            self.timer.as_mut().reset(due.into());
        }
    }
}
