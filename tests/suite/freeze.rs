//! What is stopped goes on: in whatever state a thread is when memprof stops it, and however memprof ends.
//!
//! Needs root and a compiler. `MEMPROF_TEST_ROUNDS=1000` for more rounds.

mod blocked;
mod forked_children;
mod frozen;
#[cfg(target_arch = "x86_64")]
mod matrix;
mod states;
mod stopped;
mod userfaults;

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::common::process::{LIMIT, state};
use memprof_sys::ids::Pid;

/// Starts memprof, which says nothing.
fn start(args: &[&str]) -> Child {
    let mut memprof = Command::new(crate::common::binary::MEMPROF);
    memprof.args(args).stdin(Stdio::null());
    memprof.stdout(Stdio::null()).stderr(Stdio::null());
    memprof.spawn().unwrap()
}

/// Waits until memprof holds a process. Returns whether it did before it ended.
fn is_held(pid: Pid, memprof: &mut Child) -> bool {
    let begun = Instant::now();
    while memprof.try_wait().unwrap().is_none() {
        if state(pid) == 't' {
            return true;
        }
        assert!(begun.elapsed() < LIMIT, "memprof does not end");
    }
    false
}
