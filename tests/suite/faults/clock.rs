//! The system's clock is set while memprof runs, by hours and by decades, forwards and back: what it measures does not change.
//!
//! A library that memprof preloads sets it: the machine's clock is not touched.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use crate::faults::{equals_the_kernel, times};

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;
/// To 1971, to after 2038, and by what an administrator would correct.
const SET: [i64; 7] = [-2, 3, HOUR, -HOUR, 20 * YEAR, -55 * YEAR, 0];

/// A clock that a test sets.
struct Clock {
    dir: TempDir,
    file: File,
}

impl Clock {
    fn new() -> Clock {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("seconds");
        let file = File::create(path).unwrap();
        let clock = Clock { dir, file };
        clock.set(0);
        clock
    }

    /// Sets it so many seconds from the machine's clock.
    fn set(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    fn memprof(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.env("LD_PRELOAD", program("clock"));
        command.env("MEMPROF_TEST_CLOCK", self.dir.path().join("seconds"));
        command.args(["--stacks", "all"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// The times of the samples, and their values of a figure.
fn series(m: &Memprof) -> Vec<(u64, Option<u64>)> {
    let series = m.get("/v2/series").json();
    let anon = series["series"].as_array().unwrap().iter();
    let anon = anon.clone().find(|one| one["name"] == "rss_anon").unwrap()["values"].clone();
    let times = series["times"].as_array().unwrap().iter();
    let values = anon.as_array().unwrap().iter();
    times
        .map(|t| t.as_u64().unwrap())
        .zip(values.map(Value::as_u64))
        .collect()
}

#[test]
fn setting_it_changes_nothing_but_times() {
    let clock = Clock::new();
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let begun = Instant::now();
    let m = Memprof::spawn_as(&mut clock.memprof(&["--pid", &pid, "--listen", "127.0.0.1:0"]));
    m.said("following ");
    wait_until(|| series(&m).len() >= 2);
    let mut marks = Vec::new();
    for round in 0..times(1, 10) {
        for set in SET {
            let before = series(&m);
            clock.set(set);
            workload.lines.tell("mmap 1048576");
            equals_the_kernel(&m, workload.pid());
            // Samples go on, and earlier ones stay.
            wait_until(|| series(&m).len() > before.len() + 1);
            let after = series(&m);
            assert!(after.is_sorted_by(|a, b| a.0 < b.0), "{set}: {after:?}");
            let values = |all: &[(u64, Option<u64>)]| all.iter().map(|s| s.1).collect::<Vec<_>>();
            assert_eq!(values(&after[..before.len()]), values(&before), "{set}");
            // They are as far apart as they were.
            let longest = after.windows(2).map(|w| w[1].0 - w[0].0).max().unwrap();
            assert!(
                u128::from(longest) <= begun.elapsed().as_millis(),
                "{set}: {after:?}"
            );
            let health = m.get("/v2/health").json();
            let age = health["scan"]["age_ms"].as_u64().unwrap();
            assert!(age <= begun.elapsed().as_millis() as u64, "{set}: {health}");
            let mark = m.send("POST", "/v2/marks", "").json();
            marks.push(mark["id"].as_str().unwrap().to_owned());
            for path in [
                "/metrics",
                "/v2/export/pprof",
                "/v2/export/profile",
                "/v2/export/html",
            ] {
                assert_eq!(m.get(path).status, 200, "{set}: {path}");
            }
        }
        for mark in marks.drain(..) {
            let diff = m.get(&format!("/v2/diff?from={mark}&to=now"));
            assert_eq!(diff.status, 200, "{round}: {}", diff.text());
            assert_eq!(
                m.send("DELETE", &format!("/v2/marks/{mark}"), "").status,
                204
            );
        }
    }
    // Before 1970 there are no times, but still reports.
    clock.set(-70 * YEAR);
    workload.lines.tell("mmap 1048576");
    equals_the_kernel(&m, workload.pid());
    assert_eq!(m.send("POST", "/v2/marks", "").status, 201);
    assert_eq!(m.get("/v2/series").status, 200);
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
    workload.end();
}

/// Processes that have ended are listed for ten minutes, by no clock that is set.
#[test]
fn ended_processes_stay_listed() {
    let clock = Clock::new();
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let args = ["--pid", &pid, "--follow-forks", "--listen", "127.0.0.1:0"];
    let m = Memprof::spawn_as(&mut clock.memprof(&args));
    m.said("following ");
    workload.lines.tell("mmap 1048576");
    workload.lines.tell("fork_cow");
    let ended = || {
        let processes = m.get("/v2/processes").json();
        (
            processes["rows"].as_array().unwrap().len(),
            processes["ended"].clone(),
        )
    };
    wait_until(|| ended().0 == 2);
    workload.lines.tell("fork_end");
    wait_until(|| ended().1.to_string().contains("scenarios"));
    for set in SET {
        clock.set(set);
        workload.lines.tell("mmap 4096");
        let (_, listed) = ended();
        assert!(listed.to_string().contains("scenarios"), "{set}: {listed}");
    }
    m.interrupt();
    workload.end();
}

/// `--duration` and `--wait` neither end early nor never.
#[test]
fn limits_of_time_are_kept() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    for (args, status) in [
        (&["--pid", &pid, "--duration", "1.5"][..], 0),
        (&["--comm", "nobody-has-it", "--wait", "1.5"], 124),
    ] {
        let clock = Clock::new();
        let begun = Instant::now();
        let mut command = clock.memprof(&[args, &["--no-server"]].concat());
        let mut m = Memprof::spawn_unserved(&mut command);
        m.said(if status == 0 {
            "following "
        } else {
            "waiting for "
        });
        for set in SET.into_iter().cycle() {
            clock.set(set);
            if m.child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(m.wait().code(), Some(status), "{}", m.all_said());
        assert!(begun.elapsed() >= Duration::from_millis(1500));
    }
    workload.end();
}
