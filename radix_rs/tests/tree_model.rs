//! The tree against a set of token tuples, on random operations over a vocabulary of two.
//!
//! `PREFIXLB_TREE_OPERATIONS` says how many there are at least, `PREFIXLB_FUZZ_SECONDS` for how long it goes
//! on after them. A failure prints the shortest tape found that shows it: `replay` takes it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;
mod tape;

use std::cell::Cell;
use std::io::Write;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn tree_and_model_agree_on_any_operations() {
    let operations = from_environment("PREFIXLB_TREE_OPERATIONS", 1_000_000);
    let seconds = Duration::from_secs(from_environment("PREFIXLB_FUZZ_SECONDS", 0));
    let start = Instant::now();
    let done = AtomicU64::new(0);
    let work = || {
        while done.load(Ordering::Relaxed) < operations || start.elapsed() < seconds {
            done.fetch_add(run_tapes(250), Ordering::Relaxed);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    report(done.into_inner(), start.elapsed());
}

/// How many operations there were on them.
fn run_tapes(tapes: u32) -> u64 {
    let lengths = prop_oneof![9 => 1usize..60, 1 => 1usize..600];
    let tape = lengths.prop_flat_map(|length| prop::collection::vec(any::<u64>(), 1..=length));
    let config = Config {
        cases: tapes,
        failure_persistence: None,
        ..Config::default()
    };
    let operations = Cell::new(0);
    TestRunner::new(config)
        .run(&tape, |tape| {
            operations.set(operations.get() + tape.len() as u64 - 1);
            tape::replay(&tape);
            Ok(())
        })
        .unwrap();
    operations.get()
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

/// Past the test harness, which keeps what a passing test prints.
fn report(operations: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for eyes")]
    let rate = operations as f64 / seconds;
    let line = format!(
        "tree against model: {operations} operations in {seconds:.0} s, {rate:.0} a second\n"
    );
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
