//! The library is loaded into a process whose threads sleep.

use std::process::Command;

use crate::attach::{attached, rounds};
use crate::common::process::{LIMIT, eventually};
use crate::common::workload::{Workload, program};

/// How often its first thread has slept, and how often a sleep ended early.
fn slept(workload: &mut Workload) -> [u64; 2] {
    workload.lines.send("");
    let line = workload.lines.line();
    let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
    [0, 1].map(|_| numbers.next().unwrap())
}

#[track_caller]
fn goes_on(workload: &mut Workload) {
    let before = slept(workload)[0];
    eventually(LIMIT, "it goes on", || slept(workload)[0] > before + 3);
    assert_eq!(slept(workload)[1], 0, "a sleep ended early");
}

/// The kernel keeps one interrupted wait for each thread.
#[test]
fn a_sleep_goes_on_to_its_time_if_what_is_loaded_sleeps() {
    let mut command = Command::new(program("sleepers"));
    command.arg("0").env("LD_AUDIT", program("auditor"));
    for _ in 0..rounds() {
        let mut workload = Workload::start_as(&mut command);
        goes_on(&mut workload);
        attached(workload.pid(), &[]);
        goes_on(&mut workload);
        workload.end();
    }
}

/// The first thread is at a safe place, which is known once the unwind tables are there.
#[test]
fn no_other_thread_is_stopped_for_want_of_tables() {
    let mut workload = Workload::start_with(&program("sleepers"), &["1000"]);
    goes_on(&mut workload);
    let said = attached(workload.pid(), &["--wait", "30"]);
    let stops = said.lines().find_map(|line| {
        let stops = line.trim_start().strip_prefix("before")?.trim_start();
        stops.split(' ').next()?.parse::<u32>().ok()
    });
    assert!(stops.is_some_and(|stops| stops < 500), "{said}");
    goes_on(&mut workload);
    workload.end();
}
