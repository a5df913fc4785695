//! The limit for the duration of a freeze (`--max-freeze`).

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{runs, state, wait_until};
use crate::common::workload::{Workload, program};
use memprof_sys::freeze::{Frozen, Guard, guards_run, stands_still};

/// The default.
const BOUND: Duration = Duration::from_millis(50);
/// Factor for a busy machine.
const NOISE: u32 = 3;
/// The shortest of this many measurements counts; longer ones are noise of the machine.
const TRIES: usize = 5;

fn traced(args: &[&str]) -> Workload {
    let mut workload = Workload::start_with(&program("traced"), args);
    assert_eq!(workload.lines.line(), "ready");
    workload
}

/// The number with which the target answers.
fn said(workload: &mut Workload) -> u64 {
    workload.lines.send("");
    workload.lines.line().parse().unwrap()
}

/// Requests a mark of the frozen target; returns status and body.
fn freeze(m: &Memprof, how: &str) -> (u16, String) {
    let reply = m.send("POST", "/v2/marks", how);
    (reply.status, reply.text().to_owned())
}

fn mark(m: &Memprof, how: &str) -> Value {
    let (status, text) = freeze(m, how);
    assert_eq!(status, 201, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Freezes repeatedly; returns the shortest of the times that the target did not run.
fn shortest_stop(m: &Memprof, workload: &mut Workload) -> Duration {
    let mut stops = Vec::new();
    for _ in 0..TRIES {
        said(workload);
        let (status, text) = freeze(m, r#"{"freeze": true}"#);
        assert!(status == 201 || status == 503, "{text}");
        stops.push(said(workload));
    }
    Duration::from_micros(*stops.iter().min().unwrap())
}

#[test]
fn many_threads_run_on() {
    let mut workload = traced(&["threads", "20000"]);
    let m = Memprof::attach(workload.pid(), &[]);
    let stop = shortest_stop(&m, &mut workload);
    assert!(stop < BOUND * NOISE, "{stop:?}");
    let (status, why) = freeze(&m, r#"{"freeze": true}"#);
    assert_eq!(status, 503, "{why}");
    for part in [
        "could not be frozen",
        "20002 threads",
        "--max-freeze allows 50 ms",
    ] {
        assert!(why.contains(part), "{why}");
    }
    assert!(why.contains("Start memprof with --max-freeze "), "{why}");
    wait_until(|| runs(workload.pid()));
    m.interrupt();
    // A higher limit allows a longer freeze.
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "60000"]);
    let mark = mark(&m, r#"{"freeze": true}"#);
    assert_eq!(mark["exact"], true, "{mark}");
    wait_until(|| runs(workload.pid()));
    m.interrupt();
    workload.end();
}

/// memprof gives up in time, and all threads run.
#[test]
fn threads_that_take_too_long_to_stop_are_let_go() {
    const N: usize = 5000;
    let workload = traced(&["threads", &N.to_string()]);
    let pid = workload.pid();
    guards_run(BINARY.into());
    let mut guard = Guard::default();
    let why = Frozen::stop(&mut guard, &[pid], Duration::from_millis(2)).unwrap_err();
    assert!(why.timed_out && why.threads == N + 2, "{why:?}");
    assert!(why.stats.threads < N, "{why:?}");
    assert!(why.stats.duration < BOUND * NOISE, "{why:?}");
    wait_until(|| runs(pid));
    let frozen = Frozen::stop(&mut guard, &[pid], Duration::from_secs(60)).unwrap();
    assert!(stands_still(pid));
    assert_eq!(frozen.release().0.threads, N + 2);
    wait_until(|| runs(pid));
    workload.end();
}

#[test]
fn many_pages_run_on() {
    let mut workload = Workload::start(&program("moves"));
    assert_eq!(workload.lines.line(), "ok");
    workload.lines.tell("anon 0 1073741824");
    workload.lines.tell("touch 0 0 1073741824");
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "1"]);
    let (status, why) = freeze(&m, r#"{"freeze": true}"#);
    assert_eq!(status, 503, "{why}");
    assert!(
        why.contains("1.0 GiB") && why.contains("allows 1 ms"),
        "{why}"
    );
    m.interrupt();
    // Likewise in a report with --freeze, which contains the requested figures.
    let m = Memprof::attach(workload.pid(), &["--freeze", "--max-freeze", "1"]);
    let summary = m.get("/v2/summary").json();
    let error = summary["report"]["freeze_error"].as_str().unwrap();
    assert!(error.contains("allows 1 ms"), "{summary}");
    assert!(summary["total"]["anon"].as_u64().unwrap() >= 1 << 30);
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "60000"]);
    let mark = mark(&m, r#"{"freeze": true}"#);
    assert_eq!(mark["exact"], true, "{mark}");
    m.interrupt();
    workload.end();
}

#[test]
fn few_processes_stand_still_at_once() {
    let workload = traced(&["forks", "3"]);
    let m = Memprof::attach(workload.pid(), &["--follow-forks", "--max-freeze", "60000"]);
    for how in [r#"{"freeze": true}"#, r#"{"freeze_group": true}"#] {
        let mark = mark(&m, how);
        assert_eq!(mark["stopped_in_turn"], false, "{mark}");
        assert_eq!(mark["exact"], true, "{mark}");
    }
    m.interrupt();
    workload.end();
}

#[test]
fn many_processes_stand_still_one_after_the_other() {
    const N: usize = 300;
    let mut workload = traced(&["forks", &N.to_string()]);
    let m = Memprof::attach(workload.pid(), &["--follow-forks"]);
    let (status, why) = freeze(&m, r#"{"freeze_group": true}"#);
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("freezing 301 processes"), "{why}");
    said(&mut workload);
    let mark = mark(&m, r#"{"freeze": true}"#);
    assert_eq!(mark["stopped_in_turn"], true, "{mark}");
    // It is not a snapshot of one moment.
    assert_eq!(mark["exact"], false, "{mark}");
    let longest = mark["stopped_us"].as_u64().unwrap();
    assert!(u128::from(longest) < (BOUND * NOISE).as_micros(), "{mark}");
    let id = mark["id"].as_str().unwrap();
    let processes = m.get(&format!("/v2/processes?mark={id}")).json();
    let processes = processes["rows"].as_array().unwrap();
    assert_eq!(processes.len(), N + 1);
    for process in processes.iter().step_by(30) {
        let (pid, summary) = (&process["pid"], "/v2/summary?mark=");
        let summary = m.get(&format!("{summary}{id}&pid={pid}")).json();
        assert_eq!(summary["report"]["exact"], true, "{summary}");
        assert_eq!(summary["report"]["stopped_in_turn"], false, "{summary}");
        assert!(summary["report"]["stopped_us"].as_u64() <= Some(longest));
    }
    m.interrupt();
    workload.end();
}

#[test]
fn no_signal_is_lost() {
    let mut workload = traced(&["signals", "8"]);
    let m = Memprof::attach(workload.pid(), &["--freeze", "--max-freeze", "60000"]);
    for _ in 0..40 {
        assert_eq!(m.get("/v2/summary").status, 200);
    }
    assert_eq!(said(&mut workload), 0);
    m.interrupt();
    workload.end();
}

/// A thread in `vfork` does not stop before its child is done. It is not stopped afterwards either.
#[test]
fn one_that_hangs_in_the_kernel_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut workload = traced(&["vfork", fifo.to_str().unwrap()]);
    let pid = workload.pid();
    wait_until(|| state(pid) == 'D');
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "2000"]);
    let (status, why) = freeze(&m, r#"{"freeze": true}"#);
    assert_eq!(status, 503, "{why}");
    assert!(
        why.contains(&format!("thread {pid} is blocked in the kernel")),
        "{why}"
    );
    let mut fifo = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    fifo.write_all(b"x").unwrap();
    said(&mut workload);
    m.interrupt();
    workload.end();
}
