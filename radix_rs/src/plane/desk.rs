//! What the data plane leaves to the control plane: prompts it cannot read itself, and what it noticed.
//!
//! Neither side waits for the other: both lay down what they have to say, and a byte in a socket rings.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::status::Refusal;

/// Lines about retries that wait to be logged; more are dropped, as they are counted anyway.
const MAX_RETRIES_TOLD: usize = 256;

/// A request that another thread reads.
#[derive(Debug)]
pub struct Ask {
    /// By which it is answered.
    pub id: u64,
    /// The serialised request.
    pub message: Bytes,
}

/// What a request asks, as the control plane read it.
#[derive(Debug)]
pub struct Reading {
    /// The model it means.
    pub model: String,
    /// By which trees know its prompt; none if only the replica can tell.
    pub tokens: Vec<u32>,
    /// Of the tokenizer that made them of text: a replica with another one takes the text.
    pub tokenizer_digest: Option<Vec<u8>>,
}

/// What has been laid down since it was last taken.
#[derive(Debug, Default)]
pub struct News {
    /// Requests to read.
    pub asks: Vec<Ask>,
    /// Asks that nobody waits for any more.
    pub given_up: Vec<u64>,
    /// Replicas that failed, by id and serial, and why.
    pub suspects: Vec<(String, u64, String)>,
    /// Breakers that opened or closed: of which replica, what they are now, and why.
    pub breakers: Vec<(String, &'static str, String)>,
    /// Requests that go elsewhere, by their id, and why.
    pub retries: VecDeque<(String, String)>,
}

#[derive(Debug, Default)]
struct Tray {
    news: News,
    has_rung: bool,
    asks: u64,
    waiting: HashMap<u64, oneshot::Sender<Result<Reading, Refusal>>>,
}

#[derive(Debug)]
pub(crate) struct Desk {
    tray: Mutex<Tray>,
    bell: UnixStream,
    ear: UnixStream,
}

impl Desk {
    pub fn new() -> io::Result<Self> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok(Self {
            tray: Mutex::default(),
            bell,
            ear,
        })
    }

    fn tray(&self) -> MutexGuard<'_, Tray> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> RawFd {
        self.ear.as_raw_fd()
    }

    pub fn take(&self) -> News {
        let mut tray = self.tray();
        let mut bytes = [0; 64];
        while matches!((&self.ear).read(&mut bytes), Ok(read) if read > 0) {}
        tray.has_rung = false;
        std::mem::take(&mut tray.news)
    }

    fn lay(&self, put: impl FnOnce(&mut Tray)) {
        let mut tray = self.tray();
        put(&mut tray);
        if !std::mem::replace(&mut tray.has_rung, true) {
            // A full socket rings too, and a closed one has nobody to hear it.
            let _ = (&self.bell).write(&[0]);
        }
    }

    /// Has a request read by the control plane.
    pub fn ask(&self, message: Bytes) -> Waiting<'_> {
        let (sender, answer) = oneshot::channel();
        let mut id = 0;
        self.lay(|tray| {
            tray.asks += 1;
            id = tray.asks;
            tray.waiting.insert(id, sender);
            tray.news.asks.push(Ask { id, message });
        });
        Waiting {
            desk: self,
            id,
            answer,
        }
    }

    /// Nothing happens if nobody waits any more.
    pub fn answer(&self, id: u64, answer: Result<Reading, Refusal>) {
        let waiting = self.tray().waiting.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }

    pub fn suspect(&self, id: &str, serial: u64, why: &str) {
        self.lay(|tray| {
            let known = |(_, told, _): &(String, u64, String)| *told == serial;
            if !tray.news.suspects.iter().any(known) {
                tray.news
                    .suspects
                    .push((id.to_owned(), serial, why.to_owned()));
            }
        });
    }

    pub fn breaker(&self, id: &str, state: &'static str, why: &str) {
        self.lay(|tray| {
            tray.news
                .breakers
                .push((id.to_owned(), state, why.to_owned()));
        });
    }

    pub fn retried(&self, request_id: &str, why: &str) {
        self.lay(|tray| {
            if tray.news.retries.len() < MAX_RETRIES_TOLD {
                let line = (request_id.to_owned(), why.to_owned());
                tray.news.retries.push_back(line);
            }
        });
    }
}

/// For an answer of the control plane; whoever drops it gives it up.
pub(crate) struct Waiting<'a> {
    desk: &'a Desk,
    id: u64,
    pub answer: oneshot::Receiver<Result<Reading, Refusal>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_given_up = self.desk.tray().waiting.remove(&self.id).is_some();
        if is_given_up {
            let id = self.id;
            self.desk.lay(|tray| {
                tray.news.asks.retain(|ask| ask.id != id);
                tray.news.given_up.push(id);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        Reading {
            model: "m".to_owned(),
            tokens: vec![1],
            tokenizer_digest: None,
        }
    }

    #[test]
    fn an_answer_reaches_who_asked() {
        let desk = Desk::new().unwrap();
        let mut waiting = desk.ask(Bytes::from_static(b"x"));
        let news = desk.take();
        assert_eq!(news.asks.len(), 1);
        desk.answer(news.asks[0].id, Ok(reading()));
        assert_eq!(waiting.answer.try_recv().unwrap().unwrap().model, "m");
        drop(waiting);
        assert!(desk.take().given_up.is_empty());
    }

    #[test]
    fn who_asked_may_leave() {
        let desk = Desk::new().unwrap();
        drop(desk.ask(Bytes::new()));
        let waiting = desk.ask(Bytes::new());
        let id = desk.take().asks[0].id;
        drop(waiting);
        assert_eq!(desk.take().given_up, [id]);
        desk.answer(id, Ok(reading()));
    }

    #[test]
    fn a_suspect_is_told_once_until_it_is_taken() {
        let desk = Desk::new().unwrap();
        for _ in 0..3 {
            desk.suspect("r0", 1, "why");
        }
        assert_eq!(desk.take().suspects.len(), 1);
        desk.suspect("r0", 1, "why");
        assert_eq!(desk.take().suspects.len(), 1);
        assert!(desk.take().suspects.is_empty());
    }
}
