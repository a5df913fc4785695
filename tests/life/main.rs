//! How memprof starts, follows its targets, and ends.
//!
//! Needs root and `cc`.

mod cgroup;
mod cgroup_memory;
mod churn;
mod claims;
mod command;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../benches/support/counters.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod counters;
mod diagnostics;
mod ending;
mod endings;
mod fault_events;
mod first_thread;
mod freeze;
mod frozen_marks;
mod generations;
mod held;
mod killed_frozen;
mod late_faults;
mod let_go;
mod many;
mod max_freeze;
mod mute;
mod oom;
mod options;
mod processes;
mod run_name;
mod same_code;
mod service;
mod shared_once;
mod signals;
mod spawning;
mod start;
mod target;
mod wake_ups;
mod whole;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
