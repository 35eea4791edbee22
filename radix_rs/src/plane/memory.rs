//! How much memory the requests of all shards may take together, from their first byte until they are answered.
//!
//! Who needs more than is left is refused and gives back what it had. Nobody waits with a part in hand, so many
//! calls that are half here cannot keep each other from ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::status::Refusal;

/// A call that holds more than this is large.
const LARGE_BYTES: usize = 1 << 20;

/// One part of so many is left to calls that are not, or a few large ones would shut everybody out.
const PARTS: usize = 8;

#[derive(Debug)]
pub(crate) struct Memory {
    max_bytes: usize,
    held_bytes: AtomicUsize,
}

impl Memory {
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            held_bytes: AtomicUsize::new(0),
        }
    }

    /// What is held now.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Relaxed)
    }

    /// Nothing yet, for one call.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held {
            memory: self.clone(),
            bytes: 0,
        }
    }

    fn take(&self, bytes: usize, is_large: bool) -> Result<(), Refusal> {
        let kept = if is_large { self.max_bytes / PARTS } else { 0 };
        let most = self.max_bytes - kept;
        let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= most);
        match self.held_bytes.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => Ok(()),
            Err(held) => Err(Refusal::busy(format!(
                "requests hold {held} bytes of the {} that this router may hold, too many for {bytes} more",
                self.max_bytes
            ))),
        }
    }
}

/// What one call holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Held {
    /// Before it takes so much more.
    ///
    /// # Errors
    /// That is not left.
    pub fn add(&mut self, bytes: usize) -> Result<(), Refusal> {
        let is_large = self.bytes + bytes > LARGE_BYTES;
        self.memory.take(bytes, is_large)?;
        self.bytes += bytes;
        Ok(())
    }

    /// It holds so much now, all in all.
    ///
    /// # Errors
    /// That is more than before, and not left.
    pub fn set(&mut self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.bytes {
            return self.add(bytes - self.bytes);
        }
        self.memory
            .held_bytes
            .fetch_sub(self.bytes - bytes, Relaxed);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.held_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::Code;
    use super::*;

    const MAX_BYTES: usize = 64 << 20;

    #[test]
    fn what_is_dropped_or_no_longer_needed_is_left_for_others() {
        let memory = Arc::new(Memory::new(MAX_BYTES));
        let mut held = memory.hold();
        held.add(100).unwrap();
        held.set(300).unwrap();
        assert_eq!(memory.held_bytes(), 300);
        held.set(50).unwrap();
        assert_eq!(memory.held_bytes(), 50);
        drop(held);
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn who_needs_more_than_is_left_is_refused_and_told_when_to_ask_again() {
        let memory = Arc::new(Memory::new(MAX_BYTES));
        let mut held = memory.hold();
        held.add(MAX_BYTES / PARTS * (PARTS - 1)).unwrap();
        let refusal = held.add(1).unwrap_err();
        assert_eq!(refusal.code, Code::ResourceExhausted);
        assert_eq!(
            refusal.message,
            "requests hold 58720256 bytes of the 67108864 that this router may hold, too many for 1 more"
        );
        assert_eq!(refusal.trailers.unwrap()["retry-after"], "1");
        assert_eq!(memory.held_bytes(), MAX_BYTES / PARTS * (PARTS - 1));
    }

    #[test]
    fn large_calls_leave_a_part_to_the_others() {
        let memory = Arc::new(Memory::new(MAX_BYTES));
        let mut large: Vec<_> = (0..64).map(|_| memory.hold()).collect();
        let taken = large
            .iter_mut()
            .filter_map(|held| held.add(2 << 20).ok())
            .count();
        assert_eq!(taken, 28);
        let mut small: Vec<_> = (0..16).map(|_| memory.hold()).collect();
        let taken = small
            .iter_mut()
            .filter_map(|held| held.add(1 << 20).ok())
            .count();
        assert_eq!(taken, 8);
        assert_eq!(memory.held_bytes(), MAX_BYTES);
    }
}
