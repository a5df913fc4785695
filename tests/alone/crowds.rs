//! Attaching to many processes: the time until the port answers, and until a report contains all of them.
//!
//! The aim is 3 s until the first report; the port is opened when it can answer. The test allows fifteen times the
//! aim, three times in an optimised build: many processes run at the same time. It prints the
//! measured times. And what becomes of reports if more processes change than can be scanned for each.
//!
//! The times are taken with 400 idle and 60 busy processes; with 1,100 and 200 in full: `MEMPROF_TEST_FULL=1 cargo test --test alone -- crowds --nocapture`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Reply;
use crate::common::cgroup::Group;
use crate::common::effort;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, cont, stop, wait_until};
use crate::common::workload::{Workload, program};
use memprof_sys::residency::figures;

const REPORT: Duration = Duration::from_secs(3);
/// Enough busy processes that they change faster than they can be scanned.
const BUSY: usize = 200;
const SHARED: u32 = if cfg!(debug_assertions) { 15 } else { 3 };

/// Times from memprof's start until its replies.
#[derive(Debug)]
struct Answers {
    /// The first reply of any kind: health, or "starting".
    first: Duration,
    /// The first report.
    report: Duration,
    /// The processes that the report counts.
    processes: usize,
}

/// A reply that says that there is no report yet, and when to retry.
#[track_caller]
fn starting(reply: &Reply) {
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
}

impl Answers {
    /// Runs memprof with these arguments until its first report.
    fn parse(args: &[&str]) -> Answers {
        let started = Instant::now();
        let mut command = Command::new(BINARY);
        command.args(["--listen", "127.0.0.1:0"]).args(args);
        let m = Memprof::spawn_as(command.stdin(Stdio::null()).stdout(Stdio::null()));
        let health = m.get("/v2/health");
        let first = started.elapsed();
        if health.status != 200 {
            starting(&health);
        }
        loop {
            let reply = m.get("/v2/summary");
            let report = started.elapsed();
            if reply.status == 200 {
                let pids = reply.json()["target"]["pids"].as_array().unwrap().len();
                m.interrupt();
                return Answers {
                    first,
                    report,
                    processes: pids,
                };
            }
            starting(&reply);
            assert!(report < LIMIT, "no report within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is wrong with them.
    fn check(&self, how: &str, processes: usize) -> Vec<String> {
        let (first, report) = (self.first, self.report);
        println!("{how}: answers after {first:.2?}, a report after {report:.2?}; aim: {REPORT:?}");
        let mut wrong = Vec::new();
        if self.report > REPORT * SHARED {
            wrong.push(format!(
                "{how}: the first report came after {:.2?}",
                self.report
            ));
        }
        if self.processes != processes {
            wrong.push(format!(
                "{how}: it counts {} processes of {processes}",
                self.processes
            ));
        }
        wrong
    }
}

/// A crowd in a control group of its own.
fn crowd(kind: &str, count: usize) -> (Group, Workload) {
    let group = Group::new();
    let enter = format!(
        "echo $$ >{}/cgroup.procs && exec \"$@\"",
        group.dir.display()
    );
    let (program, count) = (program("crowd"), count.to_string());
    let program = program.to_str().unwrap();
    let args = ["-c", &enter, "sh", program, kind, &count];
    let mut workload = Workload::start_with(Path::new("/bin/sh"), &args);
    assert_eq!(workload.lines.line(), "ready");
    (group, workload)
}

fn answers_in_time(kind: &str, count: usize) {
    let (group, workload) = crowd(kind, count);
    let pid = workload.pid().to_string();
    let forks = Answers::parse(&["--pid", &pid, "--follow-forks"]);
    let mut wrong = forks.check(&format!("{count} {kind}, --follow-forks"), count + 1);
    let name = format!("/{}", group.name().display());
    let grouped = Answers::parse(&["--cgroup", &name]);
    wrong.extend(grouped.check(&format!("{count} {kind}, --cgroup"), count + 1));
    workload.end();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Busy processes change faster than all of them can be scanned. Once they stand still, the sum is the kernel's.
fn older_states_are_said() {
    let (group, workload) = crowd("busy", BUSY);
    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    let older = || m.lost().iter().any(|row| row.contains("earlier report"));
    wait_until(older);
    let pids = group.pids();
    assert_eq!(pids.len(), BUSY + 1);
    pids.iter().for_each(|pid| stop(*pid));
    let kernel = pids.iter().map(|pid| figures::read(*pid).unwrap());
    let kernel: u64 = kernel.map(|f| f.anonymous.unwrap() + f.rss_shmem).sum();
    wait_until(|| !older());
    let summary = m.get("/v2/summary").json();
    assert_eq!(summary["total"]["resident"], kernel, "{summary}");
    pids.iter().for_each(|pid| cont(*pid));
    m.interrupt();
    workload.end();
}

/// One after the other, because the busy processes use every CPU. (For the same reason this is a separate test
/// binary.)
#[test]
fn answers_come_in_time() {
    let _alone = crate::alone();
    let (idle, busy) = match effort::is_full() {
        true => (1100, BUSY),
        false => (400, 60),
    };
    answers_in_time("idle", idle);
    answers_in_time("busy", busy);
    older_states_are_said();
}
