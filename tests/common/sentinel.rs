//! `tests/workloads/sentinel.c`: a program whose threads notice what is done to them.

use std::path::Path;

use serde::Deserialize;

use super::process::{LIMIT, eventually};
use super::workload::{Lines, Workload, program};
use memprof_sys::ids::Pid;

/// What it says of itself.
#[derive(Debug, Deserialize)]
pub struct Said {
    pub wrong: u64,
    /// Waits that ended early.
    pub early: u64,
    signals: u64,
    children: u64,
    rounds: Vec<u64>,
}

/// Starts it with so many MiB of memory.
pub fn sentinel(mib: u32) -> Workload {
    sentinel_of(&program("sentinel"), mib)
}

/// The same, linked in another way.
pub fn sentinel_of(program: &Path, mib: u32) -> Workload {
    Workload::start_with(program, &[&mib.to_string()])
}

fn ask(lines: &mut Lines) -> Said {
    lines.send("");
    let line = lines.line();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

/// Every thread goes on, nothing went wrong in any of them, and nobody traces it.
#[track_caller]
pub fn unharmed(workload: &mut Workload) -> Said {
    let pid = workload.pid();
    is_unharmed(pid, &mut workload.lines)
}

/// The same of one that something else has started.
#[track_caller]
pub fn is_unharmed(pid: Pid, lines: &mut Lines) -> Said {
    let before = ask(lines);
    eventually(LIMIT, "every thread goes on", || {
        let now = ask(lines);
        let on = |(now, before): (&u64, &u64)| now > before;
        now.signals > before.signals && now.rounds.iter().zip(&before.rounds).all(on)
    });
    let said = ask(lines);
    assert_eq!((said.wrong, said.children), (0, 0), "{said:?}");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    said
}
