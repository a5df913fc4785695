//! Wake-ups of memprof are interrupts in its targets. If memprof is behind, one is enough.

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::workload::{Workload, program};

const STACKS: u64 = 70;
const PROCESSES: u64 = 140;

/// The interrupts by which the kernel wakes up a reader of a ring buffer, on all processors since the machine started;
/// other things use them, too. `None` where they are not counted.
fn interrupts() -> Option<u64> {
    let all = std::fs::read_to_string("/proc/interrupts").unwrap();
    let line = all.lines().find(|l| l.trim_start().starts_with("IWI:"))?;
    Some(
        line.split_whitespace()
            .filter_map(|n| n.parse::<u64>().ok())
            .sum(),
    )
}

#[test]
fn a_reader_that_is_behind_is_woken_up_once() {
    if interrupts().is_none() {
        crate::common::skip::skip("the kernel does not count these interrupts");
        return;
    }
    let mut workload = Workload::start(&program("generations"));
    let m = Memprof::attach(workload.pid(), &["--follow-forks"]);
    m.said("following ");
    stop(m.pid());
    let before = interrupts().unwrap();
    workload
        .lines
        .tell(&format!("run {PROCESSES} {STACKS} 100000"));
    let woken = interrupts().unwrap() - before;
    cont(m.pid());
    let stacks = PROCESSES * STACKS;
    assert!(woken < stacks / 4, "{woken} interrupts for {stacks} stacks");
    assert!(m.lost().is_empty(), "{:?}", m.lost());
    assert!(m.map_entries("stacks") > stacks / 2, "they were seen");
    workload.end();
}
