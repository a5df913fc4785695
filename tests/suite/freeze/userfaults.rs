//! Processes that handle their page faults and forks themselves: a call that makes a child of them waits for a thread that memprof
//! has stopped.

use std::time::{Duration, Instant};

use crate::common::binary::memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::skip::skip;
use crate::freeze::start;
use crate::freeze::states::{Subject, zombies};

fn subject(state: &'static str) -> Option<Subject> {
    Subject::start(state)
        .inspect_err(|why| skip(format!("no userfaultfd: {why}")))
        .ok()
}

/// It is copied instead.
#[test]
fn one_that_hears_of_forks_itself_is_not_forked() {
    let Some(subject) = subject("faults") else {
        return;
    };
    let pid = subject.pid().to_string();
    let ended = memprof(&["heap", "--pid", &pid]);
    ended.must(0, &[]);
    let why = "it was not forked: it handles its page faults itself (userfaultfd)";
    assert!(ended.stdout.contains(why), "{}", ended.stdout);
    subject.is_unharmed();
    let ended = memprof(&["heap", "--pid", &pid, "--snapshot", "fork"]);
    ended.must(1, &["userfaultfd"]);
    subject.is_unharmed();
}

/// Another process hears of the fork, and takes its time. Nobody can know that before.
#[test]
fn a_call_that_waits_for_others_does_not_hold_the_process() {
    let Some(subject) = subject("outside") else {
        return;
    };
    let pid = subject.pid().to_string();
    let ended = memprof(&[
        "heap",
        "--pid",
        &pid,
        "--snapshot",
        "fork",
        "--max-stop",
        "200",
    ]);
    ended.must(1, &["after 150 ms its other threads ran on"]);
    subject.is_unharmed();
}

/// The guard notices that memprof is gone.
#[test]
fn no_guard_is_left_if_memprof_is_killed_in_such_a_call() {
    let Some(subject) = subject("outside") else {
        return;
    };
    let pid = subject.pid();
    let mut memprof = start(&["heap", "--snapshot", "fork", "--pid", &pid.to_string()]);
    let own = memprof.id();
    let mut guards = Vec::new();
    let begun = Instant::now();
    // A thread of the process is in the call by then.
    while begun.elapsed() < Duration::from_millis(500) {
        guards.extend(children(own));
        std::thread::sleep(Duration::from_millis(1));
    }
    memprof.kill().unwrap();
    memprof.wait().unwrap();
    guards.sort_unstable();
    guards.dedup();
    assert!(!guards.is_empty());
    eventually(LIMIT, "the guard ends", || {
        guards.iter().all(|guard| !is_guard(*guard))
    });
    subject.is_unharmed();
    assert!(zombies(pid).is_empty());
}

fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn is_guard(pid: u32) -> bool {
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    command.is_ok_and(|command| command.contains("fork-guard"))
}
