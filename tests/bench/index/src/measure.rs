//! One run of every measurement.

use std::collections::BTreeMap;
use std::time::Instant;

use cpu_time::ProcessTime;
use radix_rs::index::Outcome;

use crate::heap::live_bytes;
use crate::ours;
use crate::peer::Peer;
use crate::workload::Workload;

/// Matches are timed on the last prompts, most of which the caches hold.
const DEEP: usize = 500;

#[derive(Default)]
pub struct Results {
    /// By "index: figure".
    pub figures: BTreeMap<String, f64>,
}

impl Results {
    fn note(&mut self, name: &str, figure: &str, value: f64) {
        self.figures.insert(format!("{name}: {figure}"), value);
    }

    pub fn measure<P: Peer>(&mut self, workload: &Workload) {
        let before = live_bytes();
        let mut peer = P::new(workload);
        self.note(P::NAME, "apply ns", Self::apply(&mut peer, workload, false));
        let bytes = live_bytes().saturating_sub(before) as f64;
        self.note(P::NAME, "bytes a block", bytes / workload.held as f64);
        self.matches(&mut peer, workload);
        drop(peer);
        let mut peer = P::new(workload);
        self.note(P::NAME, "singly ns", Self::apply(&mut peer, workload, true));
    }

    /// CPU time for a block operation.
    fn apply<P: Peer>(peer: &mut P, workload: &Workload, singly: bool) -> f64 {
        let mut events = P::events(workload, singly);
        let start = ProcessTime::now();
        peer.apply(&mut events);
        start.elapsed().as_nanos() as f64 / workload.operations as f64
    }

    fn matches<P: Peer>(&mut self, peer: &mut P, workload: &Workload) {
        let all = workload.prompts.len();
        let wrong = (0..all).filter(|&prompt| {
            peer.find(&P::query(workload, prompt));
            peer.found() != workload.truth[prompt]
        });
        self.note(P::NAME, "wrong matches", wrong.count() as f64);
        let queries: Vec<_> = (all.saturating_sub(DEEP)..all)
            .map(|prompt| P::query(workload, prompt))
            .collect();
        let mut times: Vec<_> = queries
            .iter()
            .cycle()
            .take(4 * queries.len())
            .map(|query| {
                let start = Instant::now();
                peer.find(query);
                start.elapsed().as_nanos() as f64
            })
            .collect();
        self.quantiles(P::NAME, "match", &mut times);
    }

    pub fn quantiles(&mut self, name: &str, what: &str, times: &mut [f64]) {
        // The clock takes some tens of nanoseconds itself.
        let mut clock: Vec<_> = (0..1000)
            .map(|_| Instant::now().elapsed().as_nanos() as f64)
            .collect();
        clock.sort_by(f64::total_cmp);
        times.sort_by(f64::total_cmp);
        for (figure, share) in [("p50 us", 50), ("p99 us", 99)] {
            let time = times[times.len() * share / 100] - clock[clock.len() / 2];
            self.note(name, &format!("{what} {figure}"), time / 1000.0);
        }
    }

    /// The router's whole way, from bytes to a proven mirror.
    pub fn measure_wire(&mut self, workload: &Workload) {
        let batches = ours::wire(workload);
        let (router, names) = ours::router(workload.replicas);
        let bytes: usize = batches.iter().map(|(_, bytes)| bytes.len()).sum();
        let start = ProcessTime::now();
        for (replica, bytes) in &batches {
            let applied = router.apply(&names[*replica], bytes).expect("a good batch");
            assert_eq!(
                applied.outcome,
                Outcome::Applied,
                "count and digest of a batch"
            );
        }
        let time = start.elapsed().as_nanos() as f64;
        self.note(
            "ours",
            "bytes to proof ns",
            time / workload.operations as f64,
        );
        self.note(
            "ours",
            "wire bytes an operation",
            bytes as f64 / workload.operations as f64,
        );
    }
}
