//! Snapshots that cannot be finished, because the child is killed or the process executes another program: they are taken again,
//! and nothing is left in the process.

use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::common::binary::{MEMPROF, run};
use crate::common::process::{LIMIT, eventually, signal};
use crate::common::sentinel::{sentinel, unharmed};
use crate::common::workload::{Workload, program};
use crate::heap::fork::children;
use memprof_sys::ids::Pid;

/// Takes a snapshot of a process, and does something once there is a child.
fn heap(pid: Pid, disturb: impl FnOnce(Pid)) -> Value {
    let memprof = Command::new(MEMPROF)
        .args(["heap", "--format", "json", "--max-stop", "10000"])
        .args(["--pid", &pid.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut memprof = memprof.unwrap();
    let mut child = None;
    eventually(LIMIT, "there is a child", || {
        child = children(pid).first().copied();
        child.is_some() || memprof.try_wait().unwrap().is_some()
    });
    if let Some(child) = child {
        disturb(child);
    }
    let ended = memprof.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(children(pid), []);
    serde_json::from_slice(&ended.stdout).unwrap()
}

/// As the kernel does if memory has run out.
#[test]
fn a_child_that_is_killed_is_made_again() {
    let mut workload = sentinel(200);
    unharmed(&mut workload);
    let pid = workload.pid();
    // (It may be killed when its memory has been copied.)
    eventually(LIMIT, "a child is killed too early", || {
        let heap = heap(pid, |child| signal(child, libc::SIGKILL));
        let Some(why) = heap["disturbed"].as_str() else {
            return false;
        };
        assert!(why.contains("child was killed"), "{why}");
        assert!(heap["attempts"].as_u64() >= Some(2), "{}", heap["attempts"]);
        assert_eq!(heap["taken"]["approach"], "fork", "{}", heap["taken"]);
        assert_eq!(heap["missing"], serde_json::json!([]));
        true
    });
    assert_eq!(unharmed(&mut workload).early, 0);
}

/// Each child is: memprof gives up, and says why.
#[test]
fn a_process_whose_children_are_always_killed_has_no_snapshot() {
    let mut workload = sentinel(200);
    unharmed(&mut workload);
    let pid = workload.pid();
    let target = pid.to_string();
    eventually(LIMIT, "each child is killed too early", || {
        let mut memprof = Command::new(MEMPROF);
        memprof.args(["heap", "--pid", &target]);
        let took = thread::scope(|scope| {
            let took = scope.spawn(|| run(&mut memprof));
            while !took.is_finished() {
                for child in children(pid) {
                    signal(child, libc::SIGKILL);
                }
            }
            took.join().unwrap()
        });
        if took.status.success() {
            return false;
        }
        took.must(
            1,
            &["none of 3 snapshots could be finished", "child was killed"],
        );
        true
    });
    assert_eq!(children(pid), []);
    assert_eq!(unharmed(&mut workload).early, 0);
}

/// The snapshot is that of the new program.
#[test]
fn a_process_that_executes_another_program_is_looked_at_again() {
    let mut workload = Workload::start_with(&program("kept_back"), &["none", "200"]);
    assert_eq!(workload.lines.line(), "ok");
    let pid = workload.pid();
    eventually(LIMIT, "it executes another program meanwhile", || {
        let heap = heap(pid, |_| {
            workload.lines.send("exec none");
            assert_eq!(workload.lines.line(), "ok");
        });
        let Some(why) = heap["disturbed"].as_str() else {
            return false;
        };
        assert!(why.contains("executed another program"), "{why}");
        true
    });
    workload.end();
}
