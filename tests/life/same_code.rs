//! Processes that run the same code share what is known of it.

use std::path::Path;
use std::time::Duration;

use crate::common::memprof::Memprof;
use crate::common::workload::{Workload, program};

const RUNS: usize = 20;
/// Stacks that may come to those of two runs in all further runs together: half of them, and those few that
/// depend on when a page is reclaimed, a lock is held or a signal comes.
const FEW: u64 = 32;

/// How many stacks are known.
fn stacks(m: &Memprof) -> u64 {
    // They are counted again after a second at the earliest.
    std::thread::sleep(Duration::from_secs(3));
    let health = m.get("/v2/health").json();
    let maps = health["maps"].as_array().unwrap();
    let found = maps.iter().find(|map| map["name"] == "stacks");
    found.expect("health names the table of stacks")["entries"]
        .as_u64()
        .unwrap()
}

#[test]
fn stacks_of_the_same_program_are_known_once() {
    // One run after the other, each upon a line.
    let script = "while read -r line; do \"$@\" && echo ok || exit 1; done";
    let survivor = program("survivor");
    let args = ["-c", script, "sh", survivor.to_str().unwrap(), "--child"];
    let mut shell = Workload::start_with(Path::new("/bin/sh"), &args);
    let m = Memprof::start(&["--pid", &shell.pid().to_string(), "--follow-forks"]);
    m.said("following ");
    let mut runs = |count| (0..count).for_each(|_| shell.lines.tell("run"));
    runs(2);
    let two = stacks(&m);
    runs(RUNS - 2);
    let all = stacks(&m);
    println!("{two} stacks known after 2 runs, {all} after {RUNS}");
    assert!(
        all <= two + two / 2 + FEW,
        "{two} stacks were known after 2 runs of the same program, {all} after {RUNS}"
    );
    m.interrupt();
    shell.end();
}
