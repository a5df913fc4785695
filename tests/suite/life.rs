//! How memprof starts, follows its targets, and ends.
//!
//! Needs root and `cc`.

mod cgroup;
mod cgroup_memory;
mod churn;
mod command;
mod command_detached;
mod diagnostics;
mod ending;
mod endings;
mod false_claims;
mod fault_events;
mod first_thread;
mod freeze;
mod frozen_marks;
mod generations;
mod killed_frozen;
mod late_faults;
mod locked_processes;
mod many_processes;
mod max_freeze;
mod oom;
mod options;
mod processes;
mod run_name;
mod same_code;
mod service;
mod shared_once;
mod signals;
mod silent_file_system;
mod spawning;
mod start;
mod target;
mod wake_ups;
mod whole_machine;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
