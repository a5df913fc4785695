//! What goes wrong around memprof: memprof is killed, its target is killed, replaced and renamed, disks are full, streams are
//! closed, clocks jump, tables and the ring buffer are full, and many clients ask for everything at once.
//!
//! A short form by default. In full, which takes about eight minutes: `./run-tests faults`, or
//! `MEMPROF_TEST_FULL=1 cargo test --test suite -- faults::`. `MEMPROF_TEST_SEED` repeats the random moments of a run.
//!
//! Needs root and `cc`.

mod clients;
mod clock;
mod disk;
mod full;
mod kernel_objects;
mod kills;
mod stops;
mod streams;
mod target;
mod work_directory;

use std::time::Instant;

use serde_json::Value;

use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, cont, stop};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// The number of times that something is done, in the short form and in full.
fn times(short: u32, full: u32) -> u32 {
    match effort::is_full() {
        true => full,
        false => short,
    }
}

/// With its process stopped, memprof's figure equals the kernel's.
#[track_caller]
fn equals_the_kernel(m: &Memprof, pid: Pid) {
    stop(pid);
    let end = Instant::now() + LIMIT;
    let mut summary = Value::Null;
    let mut kernel = 0;
    let mut equal = false;
    while !equal && Instant::now() < end {
        summary = m.get("/v2/summary").json();
        let figures = figures::read(pid).unwrap();
        kernel = figures.anonymous.unwrap() + figures.rss_shmem;
        // A report from before the stop may be given once more.
        equal = summary["total"]["resident"] == kernel
            && summary["agreement"]["verdict"] == "equal"
            && summary["target"]["pids"] == serde_json::json!([pid.0]);
    }
    cont(pid);
    assert!(equal, "the kernel says {kernel} bytes: {summary}");
}
