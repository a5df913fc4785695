//! Snapshots of a target that allocates all the time: each is right or refused, and the target does not notice.

use std::fs;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::common::effort;
use crate::common::process::{eventually, signal};
use crate::common::workload::{Workload, program};
use crate::heap::glibc::{COPY, snapshot};
use memprof_heap::{Allocator, SnapshotOptions};
use memprof_sys::ids::Pid;

/// The number of snapshots.
pub fn snapshots() -> u32 {
    effort::rounds(20)
}

#[test]
pub fn snapshots_of_a_busy_target_are_right_or_refused() {
    let mut workload = Workload::start_with(&program("heap"), &["4", "9"]);
    workload.lines.send("r");
    let pid = workload.pid();
    let (mut read, mut refused) = (0, Vec::new());
    for _ in 0..snapshots() {
        std::thread::sleep(Duration::from_millis(7));
        let heap = crate::heap::measure(pid, &COPY, 1).unwrap();
        let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
        let others: u64 = heap.others.iter().map(|row| row.resident).sum();
        assert_eq!(rows + others, heap.anonymous);
        match heap.allocator {
            Allocator::Glibc { .. } => read += 1,
            Allocator::Refused { reason } => refused.push(reason),
            // Before its first call of malloc.
            Allocator::Unknown => panic!("the heap was not found"),
        }
    }
    println!("{read} read, {} refused: {refused:#?}", refused.len());
    assert!(read > refused.len(), "{refused:#?}");
    let before = cpu_time(pid);
    eventually(Duration::from_secs(60), "the target goes on", || {
        cpu_time(pid) > before + 10
    });
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
}

/// User and system time in clock ticks.
fn cpu_time(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A limit that is too short: no snapshot, the reason is said, and the target runs.
#[test]
fn a_stop_that_would_be_too_long_ends() {
    let mut workload = Workload::start_with(&program("heap"), &["2", "10"]);
    workload.lines.send("mmm");
    workload.lines.line();
    let options = SnapshotOptions {
        max_stop: Duration::from_micros(1),
        ..COPY
    };
    let error = crate::heap::measure(workload.pid(), &options, 1).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains("ms"), "{said}");
    workload.lines.send("m");
    assert!(workload.lines.line().contains("mallinfo2"));
    workload.end();
}

/// Heaps with damage in any place: read or refused, in bounded time, and the sum of all rows stays the kernel's.
#[test]
fn damaged_heaps_are_read_or_refused() {
    #[derive(Deserialize)]
    struct Said {
        pid: u32,
    }
    let mut workload = Workload::start_with(&program("heap"), &["3", "11"]);
    workload.lines.send("m");
    workload.lines.line();
    let (mut read, mut refused) = (0, Vec::new());
    for _ in 0..snapshots() {
        workload.lines.send("d");
        let said = workload.lines.line();
        let pid = Pid(serde_json::from_str::<Said>(&said).expect(&said).pid);
        let begun = Instant::now();
        let heap = snapshot(pid);
        assert!(begun.elapsed() < Duration::from_secs(60));
        match heap.allocator {
            Allocator::Glibc { .. } => read += 1,
            Allocator::Refused { reason } => refused.push(reason),
            Allocator::Unknown => panic!("the heap was not found"),
        }
        signal(pid, libc::SIGKILL);
    }
    refused.sort();
    println!("{read} read, {} refused: {refused:#?}", refused.len());
    assert!(!refused.is_empty());
    workload.end();
}
