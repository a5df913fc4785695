//! Many processes: a large parent that starts them at a high rate, many live ones, and more than a table
//! holds.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{cont, stop};
use crate::common::workload::{Lines, Workload, program};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

fn spawner(args: &[&str], sizes: Option<&str>) -> (Memprof, Lines) {
    let program = program("spawner");
    let mut all = vec!["--listen", "127.0.0.1:0", "--follow-forks"];
    all.extend(args);
    all.extend(["--", program.to_str().unwrap()]);
    let mut command = Command::new(BINARY);
    command.args(all);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(sizes) = sizes {
        command.env("MEMPROF_TABLE_SIZES", sizes);
    }
    let mut m = Memprof::spawn_as(&mut command);
    let mut lines = Lines::new(&mut m.child);
    m.said("following ");
    assert_eq!(lines.line(), "ok");
    (m, lines)
}

/// Ends the parent's children and the parent; memprof must end with success.
#[track_caller]
fn end(mut m: Memprof, mut lines: Lines) {
    lines.tell("reap");
    lines.close();
    assert!(m.wait().success());
}

#[track_caller]
fn summary(m: &Memprof) -> Value {
    let reply = m.get("/v2/summary");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn pids(summary: &Value) -> Vec<Pid> {
    let pids = summary["target"]["pids"].as_array().unwrap().iter();
    pids.map(|pid| Pid(pid.as_u64().unwrap() as u32)).collect()
}

fn loss(summary: &Value, what: &str) -> u64 {
    let losses = summary["report"]["losses"].as_array().unwrap();
    let row = losses.iter().find(|row| row["what"] == what);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

/// The slowest of this many replies to `/v2/health`.
fn slowest_health(m: &Memprof, tries: u32) -> Duration {
    let ask = |_| {
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        let reply = m.get("/v2/health");
        assert_eq!(reply.status, 200, "{}", reply.text());
        begun.elapsed()
    };
    (0..tries).map(ask).max().unwrap()
}

/// A parent with 48 GiB of address space, of which one page in 2 MiB is used, starts up to 1,000 processes per second.
/// A release build on an idle machine answers health requests in 100 ms and ends in a second. The test allows three
/// and fifteen times as long, for busy machines and debug builds.
fn flood(how: &str) {
    let mut parent = Workload::start(&program("spawner"));
    assert_eq!(parent.lines.line(), "ok");
    let pid = parent.pid().to_string();
    let mut m = Memprof::start(&["--follow-forks", "--pid", &pid]);
    parent
        .lines
        .tell(&format!("sparse {} {}", 48u64 << 30, 2 << 20));
    summary(&m);
    parent.lines.tell(&format!("background {how} 1000"));
    std::thread::sleep(Duration::from_secs(2));
    let slowest = slowest_health(&m, 50);
    assert!(slowest <= Duration::from_millis(300), "{slowest:?}");
    let begun = Instant::now();
    m.signal(libc::SIGTERM);
    assert!(m.wait().success());
    let took = begun.elapsed();
    assert!(took <= Duration::from_secs(15), "{took:?}");
    parent.end();
}

#[test]
fn a_large_parent_that_forks_fast_stalls_nobody() {
    flood("fork");
}

#[test]
fn a_large_parent_that_vforks_fast_stalls_nobody() {
    flood("vfork");
}

const CHILDREN: usize = 1101;

#[test]
fn eleven_hundred_living_children_are_counted_and_summed() {
    let (m, mut lines) = spawner(&[], None);
    lines.tell(&format!("children {CHILDREN} 8"));
    let parent = m.followed();
    let children = memprof_sys::process::descendants(parent);
    assert_eq!(children.len(), CHILDREN);
    let all: Vec<Pid> = std::iter::once(parent).chain(children).collect();
    all.iter().for_each(|pid| stop(*pid));
    let s = summary(&m);
    let mut followed = pids(&s);
    followed.sort_unstable();
    let mut wanted = all.clone();
    wanted.sort_unstable();
    assert_eq!(followed, wanted);
    let rollups = all.iter().map(|pid| figures::rollup(*pid).unwrap());
    let anonymous: u64 = rollups.map(|rollup| rollup.anonymous).sum();
    assert_eq!(s["total"]["anon"], anonymous);
    assert_ne!(s["agreement"]["verdict"], "incomplete");
    assert_eq!(loss(&s, "processes not followed: table full"), 0, "{s}");
    all.iter().for_each(|pid| cont(*pid));
    end(m, lines);
}

/// Processes that do not fit are counted and reported, and the figures are called incomplete.
#[test]
fn a_full_table_of_processes_is_a_loss_and_ends_nothing() {
    for full in ["procs=20", "mms=20"] {
        let (mut m, mut lines) = spawner(&[], Some(full));
        lines.tell("children 50 8");
        let s = summary(&m);
        assert_eq!(pids(&s).len(), 20, "{full}");
        let not_followed = loss(&s, "processes not followed: table full");
        assert_eq!(not_followed, 51 - 20, "{full}");
        assert_eq!(s["agreement"]["verdict"], "incomplete", "{full}");
        // The figures of each followed process are exact.
        let processes = m.get("/v2/processes").json();
        let rows = processes["rows"].as_array().unwrap();
        assert!(
            rows.iter()
                .all(|r| r["agreement"]["verdict"] != "incomplete")
        );
        lines.tell("reap");
        // The table has room again.
        lines.tell("children 10 8");
        assert_eq!(pids(&summary(&m)).len(), 11, "{full}");
        lines.tell("reap");
        lines.close();
        let said = m.all_said();
        assert!(m.wait().success(), "{said}");
        assert!(said.contains("incomplete: processes are missing"), "{said}");
        let row = format!("{not_followed:>12}      processes not followed: table full");
        assert!(said.contains(&row), "{said}");
    }
}

/// If the unwinder's tables are full, stacks may be incomplete, and this is counted; totals stay exact.
#[test]
fn full_tables_of_the_unwinder_end_nothing() {
    let (m, mut lines) = spawner(&[], Some("unwind_spaces=5,unwind_pages=3"));
    lines.tell("children 20 8");
    let s = summary(&m);
    assert_eq!(pids(&s).len(), 21);
    assert_ne!(s["agreement"]["verdict"], "incomplete");
    for what in [
        "processes whose code is unknown to the unwinder: table full (counted at each try)",
        "files without an unwind table: tables full",
    ] {
        assert!(loss(&s, what) > 0, "{what}: {s}");
    }
    end(m, lines);
}

/// A full page ledger costs stacks, not memory.
#[test]
fn a_full_page_ledger_is_a_loss_and_ends_nothing() {
    for full in ["pages=100", "directory=10"] {
        let (mut m, mut lines) = spawner(&[], Some(full));
        lines.tell(&format!("sparse {} {}", 40u64 << 30, 64 << 20));
        let s = summary(&m);
        let what = "page faults not recorded: page ledger full";
        assert!(loss(&s, what) >= 300, "{full}: {s}");
        lines.close();
        assert!(m.wait().success());
    }
}
