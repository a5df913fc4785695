//! Snapshots of a command that memprof starts: after a time, or at its end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::binary::{Kept, MEMPROF, memprof, wait};
use crate::common::process::{LIMIT, eventually, signal, state};
use crate::common::workload::{Workload, program};
use crate::heap::glibc::compiled;
use crate::heap::unreachable::{nearly_all, one_of_two_runs};
use memprof_sys::ids::Pid;

/// Runs `memprof heap` on a command without input; returns the command's own output as JSON, and the report.
fn at_end(command: &Path) -> (Value, Value) {
    at_end_with(command, &[], 0)
}

/// The same of a command with arguments, which ends with this status.
fn at_end_with(command: &Path, args: &[&str], status: i32) -> (Value, Value) {
    let command = command.to_str().unwrap();
    let line = ["heap", "--format", "json", "--", command];
    let ended = memprof(&[&line[..], args].concat());
    ended.must(status, &[]);
    let (own, report) = ended.stdout.split_once('\n').unwrap();
    let json = |text: &str| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    (json(own), json(report))
}

/// What nothing refers to at the end is what leak checkers report; threads that have ended change nothing.
#[test]
fn all_that_was_forgotten_is_found_at_the_end() {
    for leaks in [program("leaks"), compiled("leaks", &["-static"])] {
        one_of_two_runs(|| forgotten_is_found(&leaks));
    }
}

/// Whether nearly all that the program forgot is found at its end.
fn forgotten_is_found(leaks: &Path) -> Result<(), String> {
    let (forgotten, heap) = at_end(leaks);
    let found = &heap["unreachable"];
    let listed = found["heads"].as_array().unwrap().len() as u64;
    let heads = listed + found["heads_left_out"].as_u64().unwrap();
    let chunks = found["chunks"].as_u64().unwrap();
    let all = ["blocks", "heads"].map(|of| forgotten[of].as_u64().unwrap());
    assert_eq!(heap["taken"]["approach"], "copy");
    let sum = |rows: &str| -> u64 {
        let rows = heap[rows].as_array().unwrap().iter();
        rows.map(|row| row["resident"].as_u64().unwrap()).sum()
    };
    assert_eq!(
        Some(sum("rows") + sum("others")),
        heap["anonymous"].as_u64()
    );
    match nearly_all([chunks, heads], all) {
        true => Ok(()),
        false => Err(format!("{forgotten} {found}")),
    }
}

/// The heap is that of the last thread, whichever that is, whether it ends by itself or ends others.
#[test]
fn the_first_thread_may_end_before_others() {
    for (args, status) in [(&[][..], 0), (&["3"], 3)] {
        let (forgotten, heap) = at_end_with(&program("relay"), args, status);
        let found = &heap["unreachable"];
        assert_eq!(found["chunks"], forgotten["blocks"], "{forgotten} {found}");
        assert_eq!(heap["comm"], "relay");
        assert_eq!(
            heap["kernel"],
            serde_json::json!([heap["anonymous"], heap["anonymous"]])
        );
    }
}

/// Its thread then has the id of the first one.
#[test]
fn the_last_thread_may_execute_a_program() {
    let relay = program("relay");
    let ended = memprof(&["heap", "--", relay.to_str().unwrap(), "exec"]);
    ended.must(7, &[]);
    assert!(ended.stdout.contains("Allocator: glibc"), "{ended:?}");
}

/// It is read through another thread, by each approach, and nothing remains in it.
#[test]
fn a_process_without_its_first_thread_is_read() {
    let mut workload = Workload::start(&program("relay"));
    workload.lines.line();
    eventually(LIMIT, "the first thread ends", || {
        state(workload.pid()) == 'Z'
    });
    let pid = workload.pid().to_string();
    for approach in ["copy", "fork"] {
        let json = ["--snapshot", approach, "--format", "json"];
        let ended = memprof(&[&["heap", "--pid", &pid][..], &json].concat());
        ended.must(0, &[]);
        let heap: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(
            (&heap["comm"], &heap["taken"]["approach"]),
            (&"relay".into(), &approach.into())
        );
        assert_eq!(heap["taken"]["remains"], Value::Null, "{}", heap["taken"]);
        assert_eq!(heap["kernel"][0], heap["anonymous"], "{}", heap["kernel"]);
    }
    let ended = memprof(&["maps", "--pid", &pid, "--format", "json"]);
    ended.must(0, &[]);
    let maps: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(maps["verdict"], "equal", "{maps}");
    workload.end();
}

#[test]
fn the_exit_status_is_the_command_s() {
    for (script, status) in [
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let ended = memprof(&["heap", "--", "sh", "-c", script]);
        ended.must(status, &[]);
        assert!(ended.stdout.contains("Allocator: glibc"), "{ended:?}");
    }
    memprof(&["heap", "--", "/no/such/command"]).must(127, &["cannot run"]);
    memprof(&["heap", "--", "/etc/passwd"]).must(126, &["cannot run"]);
}

#[test]
fn a_snapshot_after_a_time_leaves_the_command_running() {
    // Its output would keep memprof's open.
    let script = "echo $$; exec sleep 300 > /dev/null 2>&1";
    let args = ["heap", "--at", "0.5", "--format", "json", "--"];
    let ended = memprof(&[&args[..], &["sh", "-c", script]].concat());
    ended.must(0, &[]);
    let (pid, report) = ended.stdout.split_once('\n').unwrap();
    let pid = Pid(pid.parse().unwrap());
    let heap: Value = serde_json::from_str(report).unwrap();
    assert_eq!(
        (&heap["comm"], &heap["pid"]),
        (&"sleep".into(), &pid.0.into())
    );
    assert_eq!(state(pid), 'S');
    signal(pid, libc::SIGKILL);
}

#[test]
fn a_command_that_ends_early_is_looked_at_at_its_end() {
    let ended = memprof(&["heap", "--at", "50", "--", "sh", "-c", "exit 4"]);
    ended.must(4, &["the command ended before --at 50"]);
    assert!(ended.stdout.contains("Allocator: glibc"), "{ended:?}");
}

/// Ends the command, which memprof then looks at.
#[test]
fn a_signal_to_memprof_ends_the_command() {
    let mut memprof = Command::new(MEMPROF);
    memprof.args(["heap", "--", "sleep", "300"]);
    let mut memprof = Kept::start(memprof.stdout(Stdio::piped()));
    let own = memprof.0.id();
    let children = format!("/proc/{own}/task");
    eventually(LIMIT, "the command runs", || {
        let tasks = std::fs::read_dir(&children)
            .unwrap()
            .map(|task| task.unwrap().path());
        let mut lists =
            tasks.map(|task| std::fs::read_to_string(task.join("children")).unwrap_or_default());
        lists.any(|list| {
            let name = format!("/proc/{}/comm", list.trim());
            std::fs::read_to_string(name).is_ok_and(|name| name == "sleep\n")
        })
    });
    std::thread::sleep(Duration::from_millis(100));
    signal(Pid(own), Signal::SIGTERM as i32);
    let status = wait(&mut memprof.0);
    assert_eq!(status.code(), Some(128 + Signal::SIGTERM as i32));
    let mut said = String::new();
    std::io::Read::read_to_string(memprof.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("Allocator: glibc"), "{said}");
}

#[test]
fn wrong_lines_are_told_so() {
    let pid = std::process::id().to_string();
    memprof(&["heap", "--pid", &pid, "--at", "3"]).must(2, &["cannot be used with"]);
    memprof(&["heap", "--at", "never", "--", "true"]).must(2, &["or `end`"]);
    memprof(&["heap", "--pid", &pid, "--", "true"]).must(2, &["cannot be used with"]);
}
