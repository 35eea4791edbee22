//! Measures indexes of cached blocks and checks all they answer. Prints one JSON object; `tests/bench/deltas.py`
//! runs it and says what the figures mean.
//!
//! index-bench REPLICAS BLOCKS RUNS [TRACE]

mod heap;
mod measure;
mod ours;
mod peer;
#[cfg(feature = "peers")]
mod peers;
mod workload;

use measure::Results;
use workload::{Workload, made_prompts, trace_prompts};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<usize>().expect("a number");
    let (replicas, blocks, runs) = (number(0), number(1), number(2));
    let prompts = match arguments.get(3) {
        Some(path) => trace_prompts(&std::fs::read_to_string(path).expect("the trace")),
        None => made_prompts(12_000),
    };
    let workload = Workload::new(&prompts, replicas, blocks);
    drop(prompts);
    let mut all = Vec::new();
    for run in 0..runs {
        eprintln!("{replicas} replicas, run {} of {runs}", run + 1);
        let mut results = Results::default();
        results.measure::<ours::Ours>(&workload);
        results.measure_wire(&workload);
        results.measure_beside(&workload);
        results.measure_snapshot();
        if run == 0 {
            results.measure_bound();
        }
        #[cfg(feature = "peers")]
        {
            results.measure::<peers::Chain>(&workload);
            results.measure::<peers::Compressed>(&workload);
        }
        all.push(results.figures);
    }
    println!(
        "{}",
        serde_json::json!({
            "replicas": replicas, "operations": workload.operations, "held": workload.held,
            "prompts": workload.prompts.len(), "runs": all,
        })
    );
}
