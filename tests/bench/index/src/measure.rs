//! One run of every measurement.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use radix_rs::index::Outcome;

use radix_rs::chain::NO_PARENT;
use radix_rs::index::{Index, Matches};
use radix_rs::pick::Router;

use crate::heap::live_bytes;
use crate::ours;
use crate::peer::Peer;
use crate::workload::{Workload, mix};

/// Matches are timed on the last prompts, most of which the caches hold.
const DEEP: usize = 500;
/// Of a thread that matches beside another one, between two of them.
const MAX_PAUSE_NS: u64 = 10_000;

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
        let last = &workload.prompts[all.saturating_sub(DEEP)..];
        let asked: usize = last.iter().map(|(chain, _)| chain.len()).sum();
        self.note(
            P::NAME,
            "blocks of a prompt that is matched",
            asked as f64 / last.len() as f64,
        );
        let times = queries.iter().cycle().take(4 * queries.len());
        let mut times: Vec<_> = times.map(|query| timed(|| peer.find(query))).collect();
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

    /// Matches while another thread applies batches as fast as it can, to this router's mirrors and to others', beside
    /// the same ones when it is quiet; and how long that thread takes for either, beside the same alone. What both lose
    /// where they share a router is what sharing costs; the rest is the machine's.
    ///
    /// They come at random times, as prompts do: one that followed the last at once would find the lock where that left
    /// it, and its writer not back yet.
    pub fn measure_beside(&mut self, workload: &Workload) {
        let batches = ours::wire(workload);
        let (before, after) = batches.split_at(batches.len() / 2);
        let half_full = || {
            let (router, names) = ours::router(workload.replicas);
            apply(&router, &names, before);
            (router, names)
        };
        let (router, names) = half_full();
        let all = workload.prompts.len();
        let prompts = &workload.prompts[all / 2 - DEEP / 2..all / 2 + DEEP / 2];
        let (mut matches, mut random) = (Matches::default(), 0);
        let mut walk = |number: usize| {
            let (chain, _) = &prompts[number % prompts.len()];
            random = mix(random + 1);
            spin(Duration::from_nanos(random % MAX_PAUSE_NS));
            timed(|| assert!(router.walk("model", chain, &mut matches)))
        };
        let quiet = (0..41 * DEEP).map(&mut walk);
        let mut quiet: Vec<_> = quiet.skip(DEEP).collect();
        self.quantiles("ours", "match through the lock", &mut quiet);
        let alone_ns = {
            let (other, names) = half_full();
            timed(|| apply(&other, &names, after))
        };
        let mut beside = |what: &str, router: &Router, names: &[String]| {
            let (mut times, mut taken_ns) = (Vec::new(), 0.0);
            std::thread::scope(|scope| {
                let writer = scope.spawn(move || timed(|| apply(router, names, after)));
                while !writer.is_finished() {
                    times.push(walk(times.len()));
                }
                taken_ns = writer.join().expect("good batches");
            });
            self.quantiles("ours", what, &mut times);
            (taken_ns, times.len())
        };
        let (apart_ns, _) = {
            let (other, names) = half_full();
            beside("match while another router applies", &other, &names)
        };
        let (beside_ns, matched) = beside("match while applying", &router, &names);
        for (figure, value) in [
            (
                "applying while another router matches, of the time alone",
                apart_ns / alone_ns,
            ),
            (
                "applying while matching, of the time alone",
                beside_ns / alone_ns,
            ),
            (
                "a match delays the writer, us",
                (beside_ns - apart_ns) / matched as f64 / 1000.0,
            ),
        ] {
            self.note("ours", figure, value);
        }
        let p99 = |what: &str| self.figures[&format!("ours: {what} p99 us")];
        let ratio = p99("match while applying") / p99("match through the lock");
        self.note("ours", "match while applying, p99 of the quiet one", ratio);
    }

    /// A router that starts beside a replica with a million blocks.
    pub fn measure_snapshot(&mut self) {
        const BLOCKS: u64 = 1_000_000;
        let chunks = ours::snapshot(BLOCKS);
        let (router, names) = ours::router(1);
        router.clear(&names[0]).expect("a known replica");
        let start = ProcessTime::now();
        for (number, chunk) in (1..).zip(&chunks) {
            let applied = router.apply_snapshot(&names[0], chunk, number == chunks.len());
            let outcome = applied.expect("a good chunk").outcome;
            assert_eq!(outcome, Outcome::Applied, "count and digest of a snapshot");
        }
        let time = start.elapsed().as_secs_f64();
        self.note("ours", "snapshot of 1M blocks s", time);
    }

    /// A million prompts of 2,000 tokens that have nothing in common, in an index bounded to 256 MiB.
    pub fn measure_bound(&mut self) {
        const MAX_BYTES: usize = 256 << 20;
        const PROMPTS: u64 = 1_000_000;
        const BLOCKS: u64 = 125;
        let before = live_bytes();
        let mut index = Index::default();
        index.set_max_bytes(MAX_BYTES);
        let replica = index.add_replica();
        let mut hashes = Vec::new();
        let (mut largest, mut time) = (0, 0);
        for prompt in 1..=PROMPTS {
            hashes.clear();
            hashes.extend((0..BLOCKS).map(|at| mix(prompt << 20 | at)));
            let start = ProcessTime::now();
            index.store(replica, NO_PARENT, &hashes);
            time += start.elapsed().as_nanos();
            largest = largest.max(live_bytes() - before);
        }
        let operations = (PROMPTS * BLOCKS) as f64;
        assert_eq!(index.tally(replica).count, PROMPTS * BLOCKS);
        self.note(
            "ours",
            "bounded: live bytes of the bound",
            largest as f64 / MAX_BYTES as f64,
        );
        self.note("ours", "bounded: apply ns", time as f64 / operations);
    }
}

fn apply(router: &Router, names: &[String], batches: &[(usize, Vec<u8>)]) {
    for (replica, bytes) in batches {
        router.apply(&names[*replica], bytes).expect("a good batch");
    }
}

fn spin(pause: Duration) {
    let start = Instant::now();
    while start.elapsed() < pause {
        std::hint::spin_loop();
    }
}

/// Nanoseconds.
fn timed(what: impl FnOnce()) -> f64 {
    let start = Instant::now();
    what();
    start.elapsed().as_nanos() as f64
}
