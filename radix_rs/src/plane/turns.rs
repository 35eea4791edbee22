//! How much the lines of a shard read before its calls have their turn: what came and was not taken nobody counts.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

/// What is read in one turn, of all lines.
pub(crate) const TURN_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Turns {
    left: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
    over: Notify,
}

impl Turns {
    pub fn new() -> Self {
        Self {
            left: Cell::new(TURN_BYTES),
            waiting: RefCell::default(),
            over: Notify::new(),
        }
    }

    /// Ready if more may be read now.
    pub fn poll_left(&self, cx: &Context<'_>) -> Poll<()> {
        if self.left.get() > 0 {
            return Poll::Ready(());
        }
        self.waiting.borrow_mut().push(cx.waker().clone());
        self.over.notify_one();
        Poll::Pending
    }

    /// So much was read.
    pub fn read(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(bytes));
    }

    /// Begins the next turn whenever one is over. A task of its own, whose turn comes after those of all calls that
    /// were woken by what was read.
    pub async fn run(&self) {
        loop {
            self.over.notified().await;
            self.left.set(TURN_BYTES);
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::rc::Rc;

    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    #[test]
    fn who_was_woken_by_what_was_read_goes_before_more_is_read() {
        let said = Rc::new(RefCell::new(Vec::new()));
        let say = |what: &'static str| {
            let said = said.clone();
            async move { said.borrow_mut().push(what) }
        };
        let runtime = Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let turns = Rc::new(Turns::new());
            let running = turns.clone();
            spawn_local(async move { running.run().await });
            poll_fn(|cx| turns.poll_left(cx)).await;
            turns.read(TURN_BYTES / 2);
            poll_fn(|cx| turns.poll_left(cx)).await;
            turns.read(TURN_BYTES);
            spawn_local(say("call"));
            poll_fn(|cx| turns.poll_left(cx)).await;
            say("read").await;
        });
        assert_eq!(*said.borrow(), ["call", "read"]);
    }
}
