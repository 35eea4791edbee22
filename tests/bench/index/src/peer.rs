//! What is measured of each index.

use crate::workload::Workload;

pub trait Peer {
    const NAME: &'static str;
    type Event;
    type Query;

    fn new(workload: &Workload) -> Self;
    /// All events of a history; `singly` with one block each.
    fn events(workload: &Workload, singly: bool) -> Vec<Self::Event>;
    /// Events may be taken or left; what is left is freed after the clock stopped.
    fn apply(&mut self, events: &mut Vec<Self::Event>);
    fn query(workload: &Workload, prompt: usize) -> Self::Query;
    /// Keeps what it finds until the next call.
    fn find(&mut self, query: &Self::Query);
    /// See `workload::checksum`.
    fn found(&self) -> u64;
}
