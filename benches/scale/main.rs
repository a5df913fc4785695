//! How memprof's cost grows: with threads, mappings, resident memory, stacks, and processes.
//!
//! ```text
//! cargo bench --bench scale [-- NAME…]      (as root)
//! MEMPROF_BENCH_FULL=1 cargo bench --bench scale [-- NAME…]      (all points of each curve)
//! ```
//!
//! A curve ends with its exponents: the cost grows with `n` to this power. memprof's cost is its CPU time, on which other load
//! has the least effect. The largest targets take the memory that the machine can spare; the output says so.

mod curve;
mod followed;
mod large;
mod mappings;
mod memory;
mod processes;
mod stacks;
#[path = "../support/mod.rs"]
mod support;
mod target;
mod threads;

use std::process::ExitCode;

use support::workload::compile;
use support::{Bench, Measurement};

const MEASUREMENTS: [Measurement; 11] = [
    ("large", large::large),
    ("threads", threads::threads),
    ("mappings", mappings::mappings),
    ("resident", memory::resident),
    ("lone", memory::lone),
    ("sparse", memory::sparse),
    ("shared", memory::shared),
    ("spawned", processes::spawned),
    ("forked", processes::forked),
    ("stacks", stacks::stacks),
    ("followed", followed::followed),
];

fn main() -> ExitCode {
    let bench = curve::check().and_then(|()| Bench::prepare("bench-workloads", compile));
    Bench::main(bench, &MEASUREMENTS)
}
