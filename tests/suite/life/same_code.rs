//! Processes that run the same code share its stacks.

use std::path::Path;
use std::time::Duration;

use crate::common::memprof::Memprof;
use crate::common::workload::{Workload, program};

/// Runs before the first count. The first runs have stacks that no later one has: tables are built, and pages are read
/// from disk.
const FIRST: usize = 4;
const RUNS: usize = 20;

/// The number of known stacks.
fn stacks(m: &Memprof) -> u64 {
    // memprof counts them at most once per second.
    std::thread::sleep(Duration::from_secs(3));
    m.map_entries("stacks")
}

#[test]
fn stacks_of_the_same_program_are_known_once() {
    // One run for each line of input.
    let script = "while read -r line; do \"$@\" && echo ok || exit 1; done";
    let survivor = program("survivor");
    let args = ["-c", script, "sh", survivor.to_str().unwrap(), "--child"];
    let mut shell = Workload::start_with(Path::new("/bin/sh"), &args);
    let m = Memprof::attach(shell.pid(), &["--follow-forks"]);
    m.said("following ");
    let mut runs = |count| (0..count).for_each(|_| shell.lines.tell("run"));
    runs(FIRST / 2);
    let _ = stacks(&m);
    runs(FIRST / 2);
    let first = stacks(&m);
    runs(RUNS);
    let all = stacks(&m);
    println!("{first} stacks known after {FIRST} runs, {all} after {RUNS} more");
    // Each run adds a few, for example depending on whether parent or child first writes to a shared page. If each
    // run had its own stacks, there would be six times as many.
    assert!(
        all <= 2 * first,
        "{first} stacks were known after {FIRST} runs of the same program, {all} after {RUNS} more"
    );
    m.interrupt();
    shell.end();
}
