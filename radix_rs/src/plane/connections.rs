//! Who is connected: no more than there may be. Who comes beyond takes the place of who has rested longest, and is
//! turned away while nobody rests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Of those that may be connected, how many may still be leaving: one of so many, and a few.
const LEAVING: (usize, usize) = (8, 8);

#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    /// Sockets, of who leaves too.
    open: AtomicUsize,
    seats: Mutex<HashMap<u64, Arc<Seat>>>,
    come: AtomicU64,
}

/// One connection's place.
#[derive(Debug)]
struct Seat {
    came: Instant,
    calls: AtomicU32,
    /// Nanoseconds after it came.
    rests_since_ns: AtomicU64,
    leave: Notify,
}

impl Connections {
    pub fn new(max: usize) -> Self {
        Self {
            max,
            open: AtomicUsize::new(0),
            seats: Mutex::default(),
            come: AtomicU64::new(0),
        }
    }

    pub fn open(&self) -> usize {
        self.open.load(SeqCst)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<u64, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more is connected; None if there is no room and nobody rests.
    pub fn seat(self: &Arc<Self>) -> Option<Seated> {
        let mut seats = self.seats();
        let (part, few) = LEAVING;
        if self.open() >= self.max + self.max / part + few {
            return None;
        }
        if seats.len() >= self.max {
            let resting = seats.iter().filter(|(_, seat)| seat.calls() == 0);
            let (&number, _) = resting.min_by_key(|(_, seat)| seat.rests_since())?;
            seats.remove(&number)?.leave.notify_one();
        }
        let number = self.come.fetch_add(1, SeqCst);
        let seat = Arc::new(Seat {
            came: Instant::now(),
            calls: AtomicU32::new(0),
            rests_since_ns: AtomicU64::new(0),
            leave: Notify::new(),
        });
        seats.insert(number, seat.clone());
        self.open.fetch_add(1, SeqCst);
        Some(Seated {
            connections: self.clone(),
            number,
            seat,
        })
    }
}

impl Seat {
    fn calls(&self) -> u32 {
        self.calls.load(SeqCst)
    }

    fn rests_since(&self) -> Instant {
        self.came + Duration::from_nanos(self.rests_since_ns.load(SeqCst))
    }
}

/// A connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seated {
    connections: Arc<Connections>,
    number: u64,
    seat: Arc<Seat>,
}

impl Seated {
    /// Returns once somebody else has its place.
    pub async fn to_leave(&self) {
        self.seat.leave.notified().await;
    }

    /// When its last call ended, or it came; None while it has one.
    pub fn rests_since(&self) -> Option<Instant> {
        (self.seat.calls() == 0).then(|| self.seat.rests_since())
    }

    /// It has one more call, until that is dropped.
    pub fn call(&self) -> Calling {
        self.seat.calls.fetch_add(1, SeqCst);
        Calling(self.seat.clone())
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.connections.seats().remove(&self.number);
        self.connections.open.fetch_sub(1, SeqCst);
    }
}

/// A call of a connection.
#[derive(Debug)]
pub(crate) struct Calling(Arc<Seat>);

impl Drop for Calling {
    fn drop(&mut self) {
        let since = self.0.came.elapsed().as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.rests_since_ns.store(since, SeqCst);
        self.0.calls.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_to_leave(seated: &Seated) -> bool {
        pin!(seated.to_leave())
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn who_has_rested_longest_makes_room_and_who_has_a_call_stays() {
        let connections = Arc::new(Connections::new(3));
        let seated: Vec<_> = (0..3).map(|_| connections.seat().unwrap()).collect();
        let call = seated[0].call();
        drop(seated[1].call()); // rests since now
        let new = connections.seat().unwrap();
        assert_eq!(
            seated.iter().map(is_to_leave).collect::<Vec<_>>(),
            [false, false, true]
        );
        let _calls = [seated[1].call(), new.call()];
        assert!(connections.seat().is_none(), "nobody rests");
        drop(call);
        assert!(connections.seat().is_some());
        assert!(is_to_leave(&seated[0]));
    }

    #[test]
    fn who_leaves_and_stays_is_bounded_too() {
        let connections = Arc::new(Connections::new(16));
        let seated: Vec<_> = std::iter::from_fn(|| connections.seat())
            .take(1000)
            .collect();
        assert_eq!((seated.len(), connections.open()), (26, 26));
        drop(seated);
        assert_eq!(connections.open(), 0);
        assert!(connections.seats().is_empty());
    }
}
